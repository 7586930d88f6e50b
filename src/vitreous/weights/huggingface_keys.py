"""Known keys of Hugging Face's config.json and preprocessor_config.json, grouped by how the reader treats them.

Keys that are in none of these groups are reported in a note, because they may change what the model computes.
"""

import re
from typing import Any

# The reader uses these. It compares others with the tensors (`huggingface._settings_from_tensors`).
USED = (
    *("model_type", "hidden_act", "layer_norm_eps", "num_attention_heads", "image_size", "id2label", "problem_type"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "drop_path_rate"),
)
# If present, these must have one of the listed values: models with other values are not supported.
FIXED: dict[str, tuple[Any, ...]] = {
    "pooler_act": ("tanh",),
    "quantization_config": (None, {}),
    "pruned_heads": (None, {}),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "interpolate_antialias": (True,),
    "interpolate_offset": (0.0,),
}
# These do not change the outputs: names and versions, initialisation, pre-training, feature maps for other programs,
# how transformers runs the model, and the settings of text generation that every old config.json has.
_NO_EFFECT = """
    architectures _name_or_path transformers_version _commit_hash label2id num_labels torch_dtype dtype auto_map
    finetuning_task tokenizer_class prefix task_specific_params
    initializer_range layerscale_value encoder_stride pooler_output_size mlp_ratio use_mask_token mask_ratio
    norm_pix_loss decoder_hidden_size decoder_intermediate_size decoder_num_attention_heads decoder_num_hidden_layers
    out_features out_indices _out_features _out_indices stage_names apply_layernorm reshape_hidden_states
    return_dict output_hidden_states output_attentions torchscript use_bfloat16 tf_legacy_loss use_return_dict
    chunk_size_feed_forward tie_word_embeddings is_encoder_decoder tie_encoder_decoder cross_attention_hidden_size
    gradient_checkpointing _attn_implementation attn_implementation _attn_implementation_autoset
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
    typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens bos_token_id
    pad_token_id eos_token_id sep_token_id decoder_start_token_id
"""
NO_EFFECT = frozenset(_NO_EFFECT.split())

# In preprocessor_config.json: the supported classes, and the keys that are used or have no effect.
PREPROCESSORS = re.compile(r"(?P<kind>ViT|DeiT|Bit|CLIP)(FeatureExtractor|ImageProcessor)(Fast|Pil)?")
_PREPROCESSOR_KEYS = """
    do_resize size resample do_center_crop crop_size do_rescale rescale_factor do_normalize image_mean image_std
    default_to_square image_processor_type feature_extractor_type processor_class do_convert_rgb use_fast
    _valid_processor_keys _processor_class data_format input_data_format return_tensors device disable_grouping
    image_seq_length
"""
PREPROCESSOR_KEYS = frozenset(_PREPROCESSOR_KEYS.split())
