"""The census: what every call of upstream that a reproducer makes does beside its values, and under other conditions.

An arm of its own runs the reproducer once more; its checks count for nothing there, so that nothing that the census
does can change what a check measures. Standard library only until upstream has imported torch.
"""
