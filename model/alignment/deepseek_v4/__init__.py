"""DeepSeek-V4 on Megatron beside transformers' DeepSeek-V4 in fp32; what that lacks, MTP and the indexers' loss, beside
the formulas in fp64.

Documents of one row are equally long, for transformers takes them as rows of a batch: packed ones it gets wrong.
"""
