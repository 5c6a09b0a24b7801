"""Where a script joins: before the outermost loop around its training."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from phalanx.cli.adapt.refusals import cannot
from phalanx.cli.adapt.script_tree import Loop, ScriptTree, path_to
from phalanx.core.script.explained import Explanation, Place
from phalanx.core.script.script_imports import Function, function_at


@dataclass(frozen=True)
class Joining:
    function: Function | None
    """``None`` is the level of the module."""
    before: ast.stmt
    models: list[str]
    optimizers: list[str]
    epochs: ast.expr | None
    """``range`` in the head of the loop over the epochs, if that is all there is."""


def joining_of(found: Explanation, tree: ScriptTree, file: str, *, whole: bool) -> Joining:
    """In the outermost function that has a name for all models and optimizers.

    ``whole``: what is around the loop over the data goes through all of them each time.
    """
    for caller in found.callers:
        models = [name for name in caller.models if name is not None]
        optimizers = [name for name in caller.optimizers if name is not None]
        named = len(models) == len(found.models) and len(optimizers) == len(found.optimizers)
        if named and caller.place.file == file:
            function = function_at(tree.tree, caller.place.function, caller.place.first)
            if caller.place.function and function is None:
                raise cannot(
                    f"{caller.place.file}:{caller.place.line} is in no function that can be read"
                )
            before, again = _statement(caller.place, function, found, tree)
            epochs = _plain_range(before) if whole else None
            if again and epochs is None:
                raise cannot(
                    f"{file}:{caller.place.line} trains several times, and not by a loop over "
                    "range(…)"
                )
            return Joining(function, before, models, optimizers, epochs)
    raise cannot(
        f"{file}, where it trains, has no place that has a name for each model and optimizer"
    )


def _statement(
    place: Place, function: Function | None, found: Explanation, tree: ScriptTree
) -> tuple[ast.stmt, bool]:
    """What to join before, and whether that is inside a loop in which optimizers are made."""
    path = path_to(function.body if function else tree.tree.body, place.line)
    if not path:
        raise cannot(f"{place.file}:{place.line} is in no statement that can be read")
    made = {
        spot.line
        for optimizer in found.optimizers
        for spot in optimizer.made
        if (spot.file, spot.first) == (place.file, place.first)
    }
    before, again = path[0], False
    for before in path:
        if isinstance(before, Loop):
            inside = range(before.lineno + 1, (before.end_lineno or 0) + 1)
            if not any(line in inside for line in made):
                break
            again = True
    return before, again


def _plain_range(statement: ast.stmt) -> ast.expr | None:
    """``range`` of ``for epoch in range(…)``, without a stride, around the pass over the data."""
    match statement:
        case ast.For(
            target=ast.Name(),
            iter=ast.Call(func=ast.Name(id="range") as counted, args=bounds, keywords=[]),
            orelse=[],
        ) if len(bounds) <= 2 and not any(isinstance(bound, ast.Starred) for bound in bounds):
            return counted
    return None
