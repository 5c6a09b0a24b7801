"""From what adoption found in a script to the script that joins by itself.

``import phalanx``, ``run = phalanx.join(…)`` before the outermost loop of the training,
``run.batches(loader)`` where it goes through its data, ``run.step()`` where it steps. What cannot
be rewritten for certain is refused.
"""

from __future__ import annotations

import ast

from phalanx.cli.adapt.joining import Joining, joining_of
from phalanx.cli.adapt.refusals import cannot, refuse_what_is_hidden
from phalanx.cli.adapt.script_tree import ScriptTree
from phalanx.cli.adapt.source_edits import SourceEdits
from phalanx.core.script.explained import Explanation, Place, Span, span_of
from phalanx.core.script.script_imports import Function, function_at

_NAMES = ("run", "training", "phalanx_run")


def rewrite(found: Explanation, source: bytes) -> SourceEdits:
    return _Rewriting(found, refuse_what_is_hidden(found), source).done()


class _Rewriting:
    def __init__(self, found: Explanation, place: Place, source: bytes) -> None:
        self._found, self._place, self._file = found, place, place.file
        self._edits = SourceEdits(source, place.file)
        self._tree = ScriptTree(self._edits.tree)
        self._functions: list[Function | None] = []
        """Where the run is used."""

    def done(self) -> SourceEdits:
        steps, passes = self._steps(), self._passes()
        self._refuse_gradients_after(steps)
        joining = joining_of(self._found, self._tree, self._file, whole=self._goes_in_passes())
        name, wide = self._name(joining)
        for call in steps:
            several = len(self._found.optimizers) > 1
            optimizer = self._edits.text_of(span_of(call.func.value))  # type: ignore[attr-defined]
            self._edits.replace(span_of(call), f"{name}.step({optimizer if several else ''})")
        for span in passes:
            self._edits.replace(span, f"{name}.batches({self._edits.text_of(span)})")
        if joining.epochs is not None:
            self._edits.replace(span_of(joining.epochs), f"{name}.epochs")
        lines = [f"global {name}"] if wide else []
        self._edits.insert_before(joining.before, *lines, f"{name} = {self._join(joining)}")
        self._import()
        return self._edits

    def _join(self, joining: Joining) -> str:
        models, optimizers = _one_or_list(joining.models), _one_or_list(joining.optimizers)
        loss = ', loss="sum"' if self._found.loss == "sum" else ""
        return f"phalanx.join({models}, {optimizers}{loss})"

    def _name(self, joining: Joining) -> tuple[str, bool]:
        """What the run is called, and whether that has to be a global name."""
        name = next((n for n in _NAMES if n not in self._tree.names()), "phalanx_joined")
        visible = all(
            joining.function in (function, *self._tree.around(function)) if function else False
            for function in self._functions
        )
        if joining.function is None or visible:
            return name, False
        owner = self._tree.class_of(joining.function)
        same = all(f and self._tree.class_of(f) is owner and _is_method(f) for f in self._functions)
        if owner is not None and same and _is_method(joining.function):
            return f"self.{name}", False
        return name, True

    # -- steps -------------------------------------------------------------------------------

    def _steps(self) -> list[ast.Call]:
        """The calls of ``step`` in the functions that were seen to step. A scaler's are left as
        they are, and so are those of other trainings: they are refused when they are reached."""
        seen = {(s.place.text, self._function(s.place)) for s in self._found.steps if s.place}
        loop, found = self._loop(), []
        around = {loop, *self._tree.loops_of(loop)} if loop else set()
        for call in self._tree.calls():
            if not (isinstance(call.func, ast.Attribute) and call.func.attr == "step"):
                continue
            function, loops = self._tree.function_of(call), set(self._tree.loops_of(call))
            if (ast.unparse(call.func.value), function) not in seen:
                continue
            together = loop is not None and function is self._tree.function_of(loop)
            if together and loop not in loops and loops - around:
                continue  # in another loop than that over the batches
            if call.args or call.keywords:
                raise cannot(f"{self._file}:{call.lineno} gives its step a closure")
            self._functions.append(function)
            found.append(call)
        return found

    def _function(self, place: Place) -> Function | None:
        return function_at(self._tree.tree, place.function, place.first)

    def _refuse_gradients_after(self, steps: list[ast.Call]) -> None:
        """``run.step()`` drops the gradients, so that a script cannot look at them afterwards."""
        lines = [s.place.line for s in self._found.steps if s.place] + [s.lineno for s in steps]
        loop = self._loop()
        for node in ast.walk(loop) if loop else ():
            if not isinstance(node, ast.Attribute) or node.attr != "grad":
                continue
            if node.lineno > min(lines) and isinstance(node.ctx, ast.Load):
                raise cannot(
                    f"{self._file}:{node.lineno} reads gradients after the step, which run.step() "
                    "drops"
                )

    # -- passes ------------------------------------------------------------------------------

    def _loop(self) -> ast.For | None:
        """The loop over the batches, if its head goes through the data or what wraps them."""
        inside, line = self._function(self._place), self._place.line
        loops = [
            node
            for node in ast.walk(self._tree.tree)
            if isinstance(node, ast.For) and self._tree.function_of(node) is inside
        ]
        for loop in loops:
            if loop.iter.lineno <= line <= (loop.iter.end_lineno or 0):
                return loop
        for loop in loops:  # bar = tqdm(enumerate(loader)), and then the loop over it
            wrapper = self._tree.assigned(getattr(loop.iter, "id", ""), line)
            if wrapper and self._tree.loops_of(wrapper) == self._tree.loops_of(loop):
                return loop
        return None

    def _goes_in_passes(self) -> bool:
        """Whether the code around the loop begins a pass each time, and not a batch."""
        loop = self._loop()
        inside = self._tree.function_of(loop) if loop else None
        yields = isinstance(inside, ast.AST) and any(
            isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(inside)
        )
        return loop is not None and not yields

    def _passes(self) -> list[Span]:
        """The loader's own expression where it is gone through."""
        span, inside = self._place.span, self._function(self._place)
        if span is None:
            raise cannot(
                f"the loop at {self._file}:{self._place.line} does not name its DataLoader in a "
                "way that can be rewritten"
            )
        node = self._node_at(span)
        self._refuse_other_data(node, inside)
        self._functions.append(inside)
        loop = self._loop()
        if loop is not None:
            inside_head = loop.iter.lineno <= span[0] <= (loop.iter.end_lineno or 0)
            if not inside_head and self._tree.loops_of(node) != self._tree.loops_of(loop):
                raise cannot(f"{self._file}:{span[0]} wraps the DataLoader once for all epochs")
            return [span]
        # iter(loader) by hand: each time it begins anew.
        again = [
            span_of(call.args[0])
            for call in self._tree.calls()
            if getattr(call.func, "id", "") == "iter"
            and call.args
            and ast.unparse(call.args[0]) == self._place.text
            and self._tree.function_of(call) is inside
        ]
        return sorted({span, *again})

    def _node_at(self, span: Span) -> ast.expr:
        for node in ast.walk(self._tree.tree):
            if isinstance(node, ast.expr) and span_of(node) == span:
                return node
        raise cannot(f"{self._file} has changed meanwhile")

    def _refuse_other_data(self, node: ast.expr, inside: Function | None) -> None:
        """A function that is given the loader, and elsewhere another one: to evaluate, perhaps."""
        given = [a.arg for a in inside.args.args] if inside else []
        if inside is None or not isinstance(node, ast.Name) or node.id not in given:
            return
        place = given.index(node.id) - (1 if given[:1] == ["self"] else 0)
        loaders = set()
        for call in self._tree.calls():
            called = getattr(call.func, "id", None) or getattr(call.func, "attr", None)
            if called != inside.name:
                continue
            named = [k.value for k in call.keywords if k.arg == node.id]
            loaders |= {ast.unparse(a) for a in named or call.args[place : place + 1]}
        if len(loaders) > 1:
            raise cannot(
                f"{inside.name}() of {self._file} is called with several loaders "
                f"({', '.join(sorted(loaders))}), and only one of them may be shared out"
            )

    # -- the import --------------------------------------------------------------------------

    def _import(self) -> None:
        """After the first imports of the file."""
        last = 0
        for statement in self._tree.tree.body:
            docstring = isinstance(statement, ast.Expr) and isinstance(
                statement.value, ast.Constant
            )
            if isinstance(statement, ast.Import | ast.ImportFrom) or (docstring and not last):
                last = statement.end_lineno or 0
            elif last:
                break
        self._edits.insert_line(last + 1, "import phalanx")


def _one_or_list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"[{', '.join(names)}]"


def _is_method(function: Function) -> bool:
    return [a.arg for a in function.args.args][:1] == ["self"]
