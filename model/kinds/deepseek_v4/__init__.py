"""Kinds of DeepSeek-V4's layers: DeepSeek's inference/model.py, and transformers 5.24.0's models/deepseek_v4.

A layer is attention or a mixture of experts, each with its own norm and hyper-connection around it, as in the
HybridModel of Megatron-LM's branch dev (d48bd6be0a85cc0d6d3cc71e8750cf357cc6bdb1, hybrid_layer_allocation.py), whose
symbols these are; megatron-core 0.19.0 has none for them. A published layer is two of these. ``published`` is
``hybrid_flops`` of that commit's training.py.
"""
