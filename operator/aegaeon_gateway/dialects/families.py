"""The families that are known: what their text looks like, and how a chat template gives them away."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from aegaeon_gateway.dialects import calls, forms, harmony
from aegaeon_gateway.dialects.call_stream import Tools
from aegaeon_gateway.dialects.forced import ForcedReader
from aegaeon_gateway.dialects.harmony import HarmonyReader
from aegaeon_gateway.dialects.marked import MarkedReader, Marks, Region
from aegaeon_gateway.dialects.pieces import Reader

NONE = "none"
"""a name for no family at all"""
_DEEPSEEK_AROUND = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_LLAMA3 = Region("<|python_tag|>", "", calls.llama3, forms.LLAMA3)

TOOLS: dict[str, Marks] = {
    # by name, in the order in which a template is asked; harmony is none of marks alone
    "deepseek": Marks(
        (Region("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", calls.deepseek, forms.DEEPSEEK),), _DEEPSEEK_AROUND
    ),
    "mistral": Marks((Region("[TOOL_CALLS]", "", calls.mistral, forms.MISTRAL),)),
    "hermes": Marks((Region("<tool_call>", "</tool_call>", calls.hermes, forms.HERMES),)),
    "llama3": Marks((_LLAMA3,), bare=_LLAMA3),
}
REASONING: dict[str, Region] = {
    "think": Region("<think>", "</think>"),
    "mistral": Region("[THINK]", "[/THINK]"),
    "seed": Region("<seed:think>", "</seed:think>"),
    "kimi": Region("◁think▷", "◁/think▷"),
}
HARMONY = "harmony"
FORCED = "forced"
"""an output that is calls and nothing else, whatever the family"""
CALL_ID_CHARACTERS = {"mistral": 9}
"""of the ids of calls, letters and digits, where a family's template is particular about them"""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a model writes, by name of a family; empty: it does not, or the request does not ask for it."""

    tools: str = ""
    reasoning: str = ""

    @property
    def marks(self) -> frozenset[str]:
        """Texts that a reader has to see, also where they are special tokens."""
        return _visible(self.tools, self.reasoning)

    @property
    def reasoning_marks(self) -> tuple[str, str] | None:
        """The mark that opens reasoning, and the mark that ends it and leads to the answer."""
        if self.reasoning == HARMONY:
            return harmony.REASONING
        region = REASONING.get(self.reasoning)
        return None if region is None else (region.opening, region.closing)

    def overridden(self, tools: str, reasoning: str) -> Dialect:
        """The dialect with a manifest's values in place of its own; empty: no value."""
        made = Dialect(tools or self.tools, reasoning or self.reasoning)
        return Dialect(made.tools.replace(NONE, ""), made.reasoning.replace(NONE, ""))

    def reader(self, tools: Tools, *, inside: bool) -> Reader | None:
        """For one answer; None where there is nothing to be read. `inside`: the prompt ends within reasoning."""
        if self.tools == FORCED:
            return ForcedReader(tools)
        if HARMONY in (self.tools, self.reasoning):
            return HarmonyReader(tools)
        marks = _marks_of(self.tools, self.reasoning)
        return MarkedReader(marks, tools, inside=inside) if marks.regions else None


@cache
def _marks_of(tools: str, reasoning: str) -> Marks:
    called = TOOLS.get(tools, Marks(()))
    reasoned = (REASONING[reasoning],) if reasoning in REASONING else ()
    return Marks((*called.regions, *reasoned), called.ignored, called.bare)


@cache
def _visible(tools: str, reasoning: str) -> frozenset[str]:
    return harmony.MARKS if HARMONY in (tools, reasoning) else _marks_of(tools, reasoning).all


def detected(template: str) -> Dialect:
    """Detect the dialect of a model from its chat template."""
    if "<|channel|>" in template and "<|start|>" in template:
        return Dialect(HARMONY, HARMONY)
    tools = next((name for name, marks in TOOLS.items() if _speaks(template, marks)), "")
    if not tools and "<|start_header_id|>" in template and "tools" in template:
        tools = "llama3"
    reasoning = next((name for name, region in REASONING.items() if region.closing in template), "")
    return Dialect(tools, reasoning)


def _speaks(template: str, marks: Marks) -> bool:
    """`<function=`: a form of Qwen3-Coder, which writes XML between the marks of Hermes."""
    return "<function=" not in template and all(region.opening in template for region in marks.regions)


def ends_inside(dialect: Dialect, prompt: str) -> bool:
    """True when a prompt ends with the opening of reasoning, as templates of models that always reason do."""
    region = REASONING.get(dialect.reasoning)
    return region is not None and prompt.rstrip().endswith(region.opening)
