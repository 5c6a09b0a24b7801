"""What cannot be rewritten, and why: such a script trains as it is."""

from __future__ import annotations

from phalanx.core.errors import InputError
from phalanx.core.script.explained import Explanation, Place

_AS_IT_IS = "It trains as it is: phalanx run SCRIPT. To change it by hand, see phalanx.join."
_REFUSED = "Several workers refuse that as well; see phalanx run --explain SCRIPT."
_OTHER_LOSS = "As it is, it trains if you declare the loss: phalanx run SCRIPT --loss mean."


def cannot(why: str, remedy: str = _AS_IT_IS) -> InputError:
    return InputError(f"cannot make this script explicit: {why}", remedy)


def refuse_what_is_hidden(found: Explanation) -> Place:
    """The place of the loop, if that and all steps are in one of the script's own files."""
    if found.joins:
        raise InputError("the script calls Phalanx itself", "There is nothing to adapt.")
    if found.refused:
        raise cannot(found.refused[0], _OTHER_LOSS if found.loss == "other" else _REFUSED)
    data = found.data
    if data is None or data.place is None or data.library:
        library = data.library if data else None
        raise cannot(f"its loop over the data is inside {library or 'a library'}")
    if data.own_order is not None:
        raise cannot(data.own_order)
    for step in found.steps:
        if step.library or step.place is None:
            raise cannot(f"its step is taken inside {step.library or 'a library'}")
        where = f"{step.place.file}:{step.place.line}"
        if step.closure:
            raise cannot(f"{where} gives its step a closure")
        if not step.place.text:
            raise cannot(f"{where} does not name its optimizer in a way that can be rewritten")
        if step.place.file != data.place.file:
            raise cannot(
                f"it goes through its data in {data.place.file}, and steps in {step.place.file}"
            )
    stepped = {step.optimizer for step in found.steps}
    for index, optimizer in enumerate(found.optimizers):
        if index not in stepped:
            raise cannot(f"{optimizer.kind} took no step in the first batches")
    return data.place
