"""The network that is trained beside a public model with the same weights, or beside its formulas in fp64.

A family says which references it has (``Family.references``), each a class that makes draws (``draw.Draw``): both
models, the same tokens, and the rows of the table. Nothing but the comparison with a public model imports its library.
"""
