"""Errors planted in functions of upstream's code and ours by their source, for as long as a block runs."""

import contextlib
import importlib
import inspect
import sys
import textwrap


@contextlib.contextmanager
def planted(edits):
    """``edits``: ("module:qualified name", old, new), each old found once; the edited function takes that name's place.
    What layers have cached is forgotten before and after."""
    with contextlib.ExitStack() as ends:
        for target, old, new in edits:
            module, _, path = target.partition(":")
            owner = importlib.import_module(module)
            *outer, name = path.split(".")
            for part in outer:
                owner = getattr(owner, part)
            before = inspect.getattr_static(owner, name)
            setattr(owner, name, _edited(getattr(owner, name), owner if outer else None, old, new))
            ends.callback(setattr, owner, name, before)
        ends.callback(_forget)
        _forget()
        yield


def _edited(function, owner, old, new):
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, (function, old, source.count(old))
    # a method's super() reads __class__ from the scope around it
    text = "def made(__class__):\n" + textwrap.indent(source.replace(old, new), "    ")
    text += f"\n    return {function.__name__}\n"
    scope = {}
    function = inspect.unwrap(function)
    exec(compile(text, f"<planted in {function.__qualname__}>", "exec"), function.__globals__, scope)
    return scope["made"](owner)


def _forget():
    for module in [module for name, module in sys.modules.items() if name.startswith("model.layers.")]:
        for value in vars(module).values():
            if callable(getattr(value, "cache_clear", None)):
                value.cache_clear()
