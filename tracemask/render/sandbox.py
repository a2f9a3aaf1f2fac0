"""The Jinja environment of chat templates: transformers' settings, provenance kept, nothing unsafe reachable."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from typing import Any, cast

from jinja2 import nodes, pass_context, pass_eval_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace

from tracemask.render import operators
from tracemask.render.budget import Buffer, Progress
from tracemask.render.codegen import TracingGenerator
from tracemask.render.fields import Flag, Items, Null, Real, Record, Whole
from tracemask.render.filters import refused, tracing_filters
from tracemask.render.formatting import TextFormatter, literal_only
from tracemask.render.markup import Safe
from tracemask.render.provenance import Text, cat, literal, tagged
from tracemask.render.spelling import concatenated, text_of
from tracemask.render.tags import LimitExceeded, Mark, Untraceable

_OURS = (Record, Text, Items, Whole, Real, Flag, Null)
_DICT_NAMES = frozenset(dir(dict))
_TEXT_METHODS = frozenset(name for name in dir(str) if not name.startswith("_")) - {"format", "format_map", "maketrans"}
_BOUND = (types.MethodType, types.BuiltinMethodType)
_PROMOTED = frozenset(
    ("center", "join", "ljust", "replace", "rjust", "removeprefix", "zfill", "expandtabs", "translate")
)
GENERATION_START, GENERATION_END = tagged("", Mark(True)), tagged("", Mark(False))


class TracingContext(Context):
    """Template variables plus the progress of this render."""

    progress: Progress

    def derived(self, locals: dict[str, Any] | None = None) -> TracingContext:
        made = cast(TracingContext, super().derived(locals))
        made.progress = self.progress
        return made


class Generation(Extension):
    """`{% generation %}`: prints its body and marks its ends. A scope of its own, as in transformers."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_bracket"), [], [], body).set_lineno(line)

    @pass_eval_context
    def _bracket(self, _: Any, caller: Callable[[], str]) -> str:
        return cat((GENERATION_START, caller(), GENERATION_END))


class SafeNamespace(Namespace):
    """A namespace that refuses underscore names, as transformers' does."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            SafeNamespace._check(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        SafeNamespace._check(name)
        super().__setitem__(name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace attribute may not begin with an underscore: {name!r}")


class SafeDict:
    """The global `dict`: makes dicts and offers nothing else to walk to."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """dict.fromkeys."""
        return dict.fromkeys(*args, **kwargs)


class TracingEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as transformers configures it, over provenance types."""

    code_generator_class = TracingGenerator
    context_class = TracingContext
    concat = staticmethod(lambda pieces: cat([*pieces]))
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))
    text_of = staticmethod(text_of)
    concatenated = staticmethod(concatenated)
    plus = staticmethod(operators.plus)
    minus = staticmethod(operators.minus)
    times = staticmethod(operators.times)
    power = staticmethod(operators.power)
    modulo = staticmethod(operators.modulo)
    divided = staticmethod(operators.divided)
    floored = staticmethod(operators.floored)
    negative = staticmethod(operators.negative)
    sliced = staticmethod(operators.sliced)
    buffer = staticmethod(lambda context: Buffer(context.progress))

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is Record:
            if attribute not in _DICT_NAMES:
                try:
                    return obj[attribute]
                except KeyError:
                    return self.undefined(obj=obj, name=attribute)
        elif kind is Text:
            if attribute in _TEXT_METHODS:
                return getattr(obj, attribute)
        elif kind is LoopContext or kind is SafeNamespace:
            if attribute[:1] != "_":
                try:
                    return getattr(obj, attribute)
                except AttributeError:
                    return self.undefined(obj=obj, name=attribute)
        elif kind is str and attribute in _PROMOTED:
            return getattr(literal(obj), attribute)
        if attribute[:1] == "_" and attribute[:2] != "__" and isinstance(obj, _OURS):
            return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        try:
            return obj[argument]
        except (TypeError, LookupError):
            if not isinstance(argument, str):
                return self.undefined(obj=obj, name=argument)
        name = str.__str__(argument)
        if name in _PROMOTED or (name[:1] == "_" and isinstance(obj, _OURS)):
            return self.getattr(obj, name)
        return super().getitem(obj, name)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __context.progress.spend(3)
        if type(__obj) in _BOUND and type(__obj.__self__) is Text and __obj.__name__ in _TEXT_METHODS:
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return __obj(*args, **kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """str.format and str.format_map as functions that keep provenance and reach only safe attributes."""
        if not isinstance(value, _BOUND):
            return None
        if value.__name__ not in ("format", "format_map") or not isinstance(value.__self__, str):
            return None
        form = value.__self__
        if isinstance(form, Safe):
            raise Untraceable("str.format of the safe filter's result")
        formatter = TextFormatter(lambda name, args, kwargs: SandboxedFormatter(self).get_field(name, args, kwargs)[0])
        if value.__name__ == "format_map":
            return lambda mapping: formatter.spell(form, (), mapping)
        return lambda *args, **kwargs: formatter.spell(form, args, _without_jinja(kwargs))

    @pass_context
    def counted(__self, __context: Any, items: Iterable[Any]) -> Iterator[Any]:
        """The items of a filtered loop, each one a step."""
        for item in items:
            __context.progress.spend(1)
            yield item


def _without_jinja(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in ("_loop_vars", "_block_vars")}


def raise_exception(message: Any) -> None:
    """The template refuses this conversation."""
    raise TemplateError(str(message))


@pass_context
def bounded_range(context: Any, *args: Any) -> range:
    """range, at most 100,000 long as in every sandboxed Jinja; its length counts as steps."""
    made = range(*args)
    if len(made) > 100_000:
        raise LimitExceeded("a range of more than 100000 numbers")
    context.progress.spend(len(made) >> 3)
    return made


def clock(day: date) -> Callable[[Any], str]:
    """strftime_now with the date pinned."""
    now = datetime(day.year, day.month, day.day)

    def strftime_now(form: Any) -> str:
        literal_only(form, "strftime_now")
        for before, after in zip(form, form[1:]):
            if before == "%" and (after.isdigit() or after in "_-^#0+:"):
                if after not in "-_" or len(form) > 64:
                    raise LimitExceeded("a width in strftime_now")
        if len(form) > 256:
            raise LimitExceeded("a strftime_now format of more than 256 characters")
        return now.strftime(form)

    return strftime_now


def _bare(value: Any) -> Any:
    return bool(value) if type(value) is Flag else None if type(value) is Null else value


def make_environment(day: date) -> TracingEnvironment:
    """An environment whose only date is `day`."""
    environment = TracingEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols], optimized=False, cache_size=0
    )
    environment.filters = tracing_filters()
    environment.tests.update(
        boolean=lambda value: isinstance(value, (bool, Flag)),
        false=lambda value: value is False or (type(value) is Flag and not value),
        integer=lambda value: isinstance(value, int) and not isinstance(value, (bool, Flag)),
        none=lambda value: value is None or type(value) is Null,
        sameas=lambda value, other: _bare(value) is _bare(other),
        true=lambda value: value is True or (type(value) is Flag and bool(value)),
    )
    environment.globals.update(
        range=bounded_range,
        raise_exception=raise_exception,
        strftime_now=clock(day),
        dict=SafeDict(),
        namespace=SafeNamespace,
        lipsum=refused("lipsum (random text)"),
    )
    return environment
