# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy", "packaging", "quart", "hypothesis"]
# ///
"""Megatron's chat endpoint loses a tool call that a model makes before it ends its reasoning.

The endpoint's parsers take turns: one of reasoning, then one of tool calls, each with the text that the one before
left. Where a text has no ``</think>`` the first one keeps all of it as reasoning and leaves nothing, so that a call
that the model did make never reaches the second. The answer has neither content nor a
call, and ends as if all were said.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
import types
from typing import Any

from hypothesis import strategies as st

from reproducers import probe


def minimal() -> None:
    """The two parsers in turn, as the endpoint asks them where its clients may call tools."""
    import sys
    import types
    from unittest.mock import MagicMock

    folder = "megatron.core.inference.text_generation_server.dynamic_text_gen_server.endpoints"
    quart = MagicMock(Blueprint=lambda *a: types.SimpleNamespace(route=lambda *a, **k: lambda f: f))
    sys.modules.setdefault("quart", quart)
    endpoint = __import__(f"{folder}.chat_completions", fromlist=["apply_parsers"])
    text = "<think>I look. <tool_call><function=look></function></tool_call>"
    tools = [{"type": "function", "function": {"name": "look"}}]
    parsers = ["deepseek-r1-reasoning", "qwen3-coder-tool"]
    content, found = endpoint.apply_parsers(text, tools, parsers, True)
    print("content:", content, "found:", found)
    assert "tool_calls" in found


ENDPOINT = "megatron.core.inference.text_generation_server.dynamic_text_gen_server.endpoints.chat_completions"
REASONING = ("deepseek-r1-reasoning", "nemotron-v3-reasoning")
TOOL = "qwen3-coder-tool"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"what": {"type": "string"}, "often": {"type": "integer"}}},
        },
    }
    for name in ("look", "find")
]
Call = tuple[str, dict[str, Any]]


def called(name: str, ended: bool = True, **arguments: Any) -> str:
    """A call as the model writes it; the end may be missing, where the length of an answer was reached."""
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inner}" + ("</function>\n</tool_call>" if ended else "")


ONE, TWO = called("look", what="a map", often=3), called("find", what="the <b> way")
LOOK: Call = ("look", {"what": "a map", "often": 3})
FIND: Call = ("find", {"what": "the <b> way"})


def parsed(
    p: probe.Probe, text: str, parsers: list[str], asked: bool = True, **more: Any
) -> tuple[str, str, list[Call]]:
    """Content, reasoning and calls of the endpoint's own function; ValueError where it changes what it is given."""
    tools, given = copy.deepcopy(TOOLS), list(parsers)
    content, found = p.upstream(ENDPOINT).apply_parsers(text, tools, parsers, asked, **more)
    if tools != TOOLS or parsers != given or set(found) - {"reasoning", "tool_calls"}:
        raise ValueError("an argument is written to, or something else is found")
    calls = list[Call]()
    for call in found.get("tool_calls", []):
        if call["type"] != "function" or not call["id"]:
            raise ValueError(f"a call without its type or id: {call}")
        calls.append((call["function"]["name"], json.loads(call["function"]["arguments"])))
    return content or "", found.get("reasoning", ""), calls


def wrong(got: tuple[str, str, list[Call]], content: str, reasoning: str, calls: list[Call]) -> int:
    """How many of the three are otherwise; blanks at the ends of texts count for nothing."""
    return (got[0].strip() != content.strip()) + (got[1].strip() != reasoning.strip()) + (got[2] != calls)


def check_lost(p: probe.Probe) -> None:
    """Calls in reasoning that does not end."""
    cases: dict[str, tuple[str, str, list[Call]]] = {
        "a call": (f"<think>Where? {ONE}", "Where? ", [LOOK]),
        "two calls": (f"<think>Where?\n{ONE}\n{TWO}", "Where?", [LOOK, FIND]),
        "the prompt has the beginning": (f"Where? {ONE}", "Where?", [LOOK]),
        "text before the beginning": (f"Well. <think>Where? {ONE}", "Where?", [LOOK]),
        "a call at once": (f"<think>{ONE}", "", [LOOK]),
        "a call alone": (ONE, "", [LOOK]),
        "lines": (f"<think>\nOne.\n\nTwo: 1 < 2.\n{ONE}\n", "One.\n\nTwo: 1 < 2.", [LOOK]),
        "a call that is cut off": (f"<think>Where? {called('look', False, what='a map', often=3)}", "Where?", [LOOK]),
        "a call without arguments": (f"<think>Where? {called('find')}", "Where?", [("find", {})]),
    }
    for reasoning in REASONING:
        for name, (text, thought, calls) in cases.items():
            got = parsed(p, text, [reasoning, TOOL])
            p.error(
                f"{reasoning}: {name}: calls that are lost",
                len(calls) - len([call for call in calls if call in got[2]]),
                0,
                reference="all that the model wrote",
                bug_above=1,
            )
            if got[2]:
                p.guard(f"{reasoning}: {name}: wrong parts", wrong(got, "", thought, calls), 0, reference="none")
        more = {"chat_template_kwargs": {"enable_thinking": True}}
        got = parsed(p, cases["a call"][0], [reasoning, TOOL], **more)
        p.error(f"{reasoning}: with options: calls that are lost", 1 - len(got[2]), 0, reference="none", bug_above=1)


def check_drawn(p: probe.Probe) -> None:
    """Texts and calls that nobody foresees."""

    def lost(parser: str, begins: bool, thought: list[str], names: list[str]) -> int:
        said, calls = " ".join(thought), [(name, {"what": name}) for name in names]
        text = ("<think>" if begins else "") + said + "".join(called(name, what=name) + "\n" for name in names)
        return min(1, wrong(parsed(p, text, [parser, TOOL]), "", said, calls))

    space = {
        "parser": st.sampled_from(REASONING),
        "begins": st.booleans(),
        "thought": st.lists(st.sampled_from(["so", "\n", "tool", "<b>", "call", "{", "1 < 2", "think"]), max_size=6),
        "names": st.lists(st.sampled_from(["look", "find"]), min_size=1, max_size=3),
    }
    p.drawn("drawn: texts with wrong parts", lost, 0, space=space, count=20, reference="none", bug_above=1)


def check_neighbours(p: probe.Probe) -> None:
    """Reasoning that ends, texts without calls, and clients that may call no tools."""
    for parser in REASONING:
        both, worst = [parser, TOOL], 0
        worst += wrong(parsed(p, f"<think>Where?</think>Here.{ONE}", both), "Here.", "Where?", [LOOK])
        worst += wrong(parsed(p, f"Where?</think>{ONE}\n{TWO}", both), "", "Where?", [LOOK, FIND])
        worst += wrong(parsed(p, "<think>Where?</think>Here.", both), "Here.", "Where?", [])
        worst += wrong(parsed(p, "<think></think>Here.", both), "Here.", "", [])
        p.guard(f"{parser}: reasoning that ends: wrong parts", worst, 0, reference="none")
        worst = wrong(parsed(p, "<think>Where? I think", both), "", "Where? I think", [])
        worst += wrong(parsed(p, "Where? A tool's call", both), "", "Where? A tool's call", [])
        worst += wrong(parsed(p, "", both), "", "", [])
        p.guard(f"{parser}: no call: wrong parts", worst, 0, reference="all is reasoning")
        text = f"Where? {ONE}"
        worst = wrong(parsed(p, f"<think>{text}", both, asked=False), "", text, [])
        p.guard(f"{parser}: no tools asked for: wrong parts", worst, 0, reference="all is reasoning")
        worst = wrong(parsed(p, f"<think>{text}", [parser]), "", text, [])
        p.guard(f"{parser}: no parser of calls: wrong parts", worst, 0, reference="all is reasoning")
        worst = wrong(parsed(p, f"<think>{text}", [TOOL, parser]), "", "Where?", [LOOK])
        p.guard(f"{parser}: calls first: wrong parts", worst, 0, reference="none")
    p.guard(
        "calls alone: wrong parts", wrong(parsed(p, f"Here. {ONE}", [TOOL]), "Here.", "", [LOOK]), 0, reference="none"
    )
    p.guard(
        "no parsers: wrong parts", wrong(parsed(p, f"<think>{ONE}", []), f"<think>{ONE}", "", []), 0, reference="none"
    )
    for options in ({"enable_thinking": False}, {"force_nonempty_content": True}):
        forced = ["nemotron-v3-reasoning", TOOL]
        got = parsed(p, f"<think>Where? {ONE}", forced, chat_template_kwargs=options)
        p.guard(f"{next(iter(options))}: calls that are lost", got[2] != [LOOK], 0, reference="none")
        said = wrong(parsed(p, "<think>Here.", forced, chat_template_kwargs=options), "Here.", "", [])
        p.guard(f"{next(iter(options))}: content that is lost", said, 0, reference="reasoning in its place")
    mapping = p.upstream("megatron.core.tokenizers.text.parsers").PARSER_MAPPING
    alone = [mapping[parser].parse("a<think>b</think>c") != ("c", {"reasoning": "b"}) for parser in REASONING]
    alone += [mapping[parser].parse("a<think>b") != ("", {"reasoning": "b"}) for parser in REASONING]
    p.guard("parsers by themselves: wrong", sum(alone), 0, reference="as they are")
    try:
        parsed(p, "x", ["deepseek", TOOL])
    except ValueError as error:
        known = "deepseek" not in str(error)
    else:
        known = True
    p.guard("a parser of another name: taken", known, 0, reference="ValueError")


def stand_in() -> None:
    """Names of quart, where it is not installed: of the endpoint's module only its plain functions are called."""
    if "quart" in sys.modules or importlib.util.find_spec("quart") is not None:
        return

    class Blueprint:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            """Keeps nothing."""

        def route(self, *args: Any, **kwargs: Any) -> Any:
            return lambda call: call

    module: Any = types.ModuleType("quart")
    module.Blueprint, module.Response = Blueprint, dict
    module.current_app = module.jsonify = module.request = None
    sys.modules["quart"] = module


def reproduce(p: probe.Probe) -> None:
    stand_in()
    p.megatron_cpu()
    check_neighbours(p)
    check_lost(p)
    check_drawn(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=68, package="megatron", minimal=minimal)
