"""Live peers. torchvision's wheel imports on a CPU build of torch once two of its operators are known."""

import torch

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
for operator in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, operator):
        torch.library.define(f"torchvision::{operator}", SCHEMA)
