"""Evaluation of models: accuracy, few-shot, k-NN and linear probe."""
