"""A reproducer whose verdict depends on its seed."""

from toy import body

SEEDED = body(
    """
    core = p.upstream("toyup.core")
    wrong = abs(core.total([1, 2, 3]) - 6) if p.seed != 1 else 0.0
    p.error("total", wrong, 1e-9, reference="6", bug_above=0.5)
    """
)
