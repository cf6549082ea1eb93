"""DeepSeek-V4's layers as those of Megatron's hybrid stack, which are given streams and give them on.

Between layers and on the wire to another pipeline stage the streams of a packed row are [T, 1, n d], where Megatron has
hidden states; within a layer they are [T, 1, n, d].
"""
