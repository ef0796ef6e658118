"""The structs of twofour.h."""

from __future__ import annotations

import ctypes as c

MOST_PARTS = 4


class LayerInfo(c.Structure):
    """twofour_layer_info"""

    _fields_ = [
        ("size", c.c_size_t),
        ("name", c.c_char_p),
        ("layout", c.c_char_p),
        ("experts", c.c_int64),
        ("hidden", c.c_int64),
        ("intermediate", c.c_int64),
        ("gated", c.c_int32),
        ("top_k", c.c_int32),
        ("weight_bytes", c.c_uint64),
        ("device_bytes", c.c_uint64),
    ]


class Options(c.Structure):
    """twofour_options"""

    _fields_ = [
        ("size", c.c_size_t),
        ("expert_map", c.POINTER(c.c_int32)),
        ("expert_map_size", c.c_int64),
        ("weight_on_input", c.c_int32),
        ("limit", c.c_float),
    ]


class Tokens(c.Structure):
    """twofour_tokens"""

    _fields_ = [
        ("size", c.c_size_t),
        ("m", c.c_int64),
        ("top_k", c.c_int64),
        ("dtype", c.c_int32),
        ("hidden", c.c_void_p),
        ("topk_ids", c.c_void_p),
        ("topk_weights", c.c_void_p),
        ("out", c.c_void_p),
        ("error_flag", c.c_void_p),
    ]


class Part(c.Structure):
    """twofour_part"""

    _fields_ = [
        ("size", c.c_size_t),
        ("suffix", c.c_char_p),
        ("dtype", c.c_char_p),
        ("rows", c.c_int64),
        ("cols", c.c_int64),
        ("parts", c.c_int32),
    ]


class StoredLayer(c.Structure):
    """twofour_stored_layer"""

    _fields_ = [
        ("size", c.c_size_t),
        ("name", c.c_char_p),
        ("layout", c.c_char_p),
        ("experts", c.c_int64),
        ("hidden", c.c_int64),
        ("intermediate", c.c_int64),
        ("gated", c.c_int32),
        ("w13_parts", c.c_void_p * MOST_PARTS),
        ("w2_parts", c.c_void_p * MOST_PARTS),
        ("w13_global_scale", c.c_void_p),
        ("w2_global_scale", c.c_void_p),
    ]


class StoredMatrix(c.Structure):
    """twofour_stored_matrix"""

    _fields_ = [
        ("size", c.c_size_t),
        ("name", c.c_char_p),
        ("layout", c.c_char_p),
        ("experts", c.c_int64),
        ("n", c.c_int64),
        ("k", c.c_int64),
        ("gated", c.c_int32),
        ("parts", c.c_void_p * MOST_PARTS),
        ("global_scale", c.c_void_p),
    ]


class ModelInfo(c.Structure):
    """twofour_model_info"""

    _fields_ = [
        ("size", c.c_size_t),
        ("layers", c.c_int64),
        ("hidden", c.c_int64),
        ("vocabulary", c.c_int64),
    ]
