"""Jinja's code generator with every text-making construct routed through provenance. Knows no template and no value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

from tracemask.render.tags import Untraceable

_REFUSED = {
    nodes.EvalContextModifier: "autoescape",
    nodes.Extends: "extends",
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from … import",
}


def refuse_nodes(tree: nodes.Template) -> None:
    """Raise Untraceable for constructs that no chat template engine runs."""
    for kind, name in _REFUSED.items():
        if tree.find(kind) is not None:
            raise Untraceable(f"{{% {name} %}}")


class TracingGenerator(CodeGenerator):
    """Emits `environment.plus((a, b))` for `a + b`, and so on; loops report each item to the render's progress.

    Nothing but template data is folded at compile time: folding runs arbitrary filters before any limit holds.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loops: list[nodes.For] = []
        self._captures_loops = False

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if isinstance(node, nodes.TemplateData):
            return node.data
        if isinstance(node, nodes.Const) and isinstance(node.value, str):
            return node.value
        raise nodes.Impossible

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if isinstance(node, (nodes.Const, nodes.Compare, nodes.Test, nodes.Not)):
            self.write("str(")
        else:
            self.write("environment.text_of(")

    def _operands(self, name: str, values: list[nodes.Expr], frame: Frame) -> None:
        self.write(f"environment.{name}((")
        for value in values:
            self.visit(value, frame)
            self.write(", ")
        self.write("))")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self._operands("concatenated", node.nodes, frame)

    def visit_Add(self, node: nodes.Add, frame: Frame) -> None:
        operands: list[nodes.Expr] = []
        left: nodes.Expr = node
        while isinstance(left, nodes.Add):
            operands.append(left.right)
            left = left.left
        operands.append(left)
        self._operands("plus", operands[::-1], frame)

    def _binary(self, name: str, node: nodes.BinExpr, frame: Frame) -> None:
        self.write(f"environment.{name}(")
        self.visit(node.left, frame)
        self.write(", ")
        self.visit(node.right, frame)
        self.write(")")

    def visit_Mul(self, node: nodes.Mul, frame: Frame) -> None:
        self._binary("times", node, frame)

    def visit_Sub(self, node: nodes.Sub, frame: Frame) -> None:
        self._binary("minus", node, frame)

    def visit_Div(self, node: nodes.Div, frame: Frame) -> None:
        self._binary("divided", node, frame)

    def visit_FloorDiv(self, node: nodes.FloorDiv, frame: Frame) -> None:
        self._binary("floored", node, frame)

    def visit_Neg(self, node: nodes.Neg, frame: Frame) -> None:
        self.write("environment.negative(")
        self.visit(node.node, frame)
        self.write(")")

    def visit_Pow(self, node: nodes.Pow, frame: Frame) -> None:
        self._binary("power", node, frame)

    def visit_Mod(self, node: nodes.Mod, frame: Frame) -> None:
        self._binary("modulo", node, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        saved = self.temporary_identifier()
        self.writeline(f"{saved} = context.progress.message", node)
        if node.test is not None:  # items that the condition drops are work too
            counted = nodes.EnvironmentAttribute("counted", lineno=node.lineno)
            node.iter = nodes.Call(counted, [node.iter], [], None, None, lineno=node.lineno)
        self._loops.append(node)
        super().visit_For(node, frame)
        self._loops.pop()
        self.writeline(f"context.progress.message = {saved}")

    def buffer(self, frame: Frame) -> None:
        if not self._captures_loops:
            super().buffer(frame)
            return
        frame.buffer = self.temporary_identifier()
        self.writeline(f"{frame.buffer} = environment.buffer(context)")

    def _capture(self, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame) -> None:
        before, self._captures_loops = self._captures_loops, node.find(nodes.For) is not None
        visit(node, frame)
        self._captures_loops = before

    def visit_AssignBlock(self, node: nodes.AssignBlock, frame: Frame) -> None:
        self._capture(super().visit_AssignBlock, node, frame)

    def visit_FilterBlock(self, node: nodes.FilterBlock, frame: Frame) -> None:
        self._capture(super().visit_FilterBlock, node, frame)

    def visit_CallBlock(self, node: nodes.CallBlock, frame: Frame) -> None:
        self._capture(super().visit_CallBlock, node, frame)

    def visit_Macro(self, node: nodes.Macro, frame: Frame) -> None:
        self._capture(super().visit_Macro, node, frame)

    def blockvisit(self, nodes_: Any, frame: Frame) -> None:
        if self._loops and nodes_ is self._loops[-1].body:
            target = self._loops[-1].target
            item = frame.symbols.ref(target.name) if isinstance(target, nodes.Name) else "None"
            self.writeline(f"context.progress.enter({item})")
        super().blockvisit(nodes_, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.sliced(context, ")
        self.visit(node.node, frame)
        for bound in (node.arg.start, node.arg.stop, node.arg.step):
            self.write(", ")
            if bound is None:
                self.write("None")
            else:
                self.visit(bound, frame)
        self.write(")")
