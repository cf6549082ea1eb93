"""DeepSeek-V4's operations as Triton kernels, forward and backward, each with the torch code of the room above as its
reference. They want a GPU, or Triton's interpreter.
"""
