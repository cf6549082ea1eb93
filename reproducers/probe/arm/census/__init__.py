"""The census: what every call of upstream that a reproducer makes does beside its values, and under other conditions.

An arm of its own runs the reproducer once more; its checks count for nothing there, so that nothing that the census
does can change what a check measures. Standard library only until upstream has imported torch.
"""

# names of facts that the runner asks for by name
AS, OTHERWISE = "as it is", "otherwise"  # how a fact of a call that is made in another way begins
MADE = "made again"
CHANGED, SAYS = "leaves changed", "says"  # by a call, or by a file when it is imported
DEFINES, UNDEFINED = "private names that touched files define", "private names that nothing defines"
UNBOUND = "names that nothing binds"  # of a file
AMISS = "amiss as a module"
MOVED, LEFT_BEHIND = "moved by to()", "left where it was by to()"
HIDDEN = "inputs whose NaN nothing shows"
SETS = "leaves changed where flags are otherwise"
HOLDS = "tensors held at the end"
IMPORTED = "__imported__"  # in "offers": names that another module defines
MARKS = "attributes of its parameters"
OPTION = "option "  # in "offers": begins what a kernel is told when it is compiled
PAST = "tensors that the graph holds beside the saved ones"
TWICE = "differentiated twice"
WHOLE = "as one graph"
