"""The text of a :class:`Loop`, put together from its pieces."""

from __future__ import annotations

from textwrap import indent

from adopted_parts import (
    CLIPS,
    DATA,
    EVALUATIONS,
    JOINED_CLIPS,
    JOINED_EVALUATION,
    LOADERS,
    LOSSES,
    MODELS,
    OPTIMIZERS,
    SCHEDULES,
    UNPACK,
    ZEROS,
)
from adopted_scripts import Loop


def text_of(loop: Loop) -> str:
    """The whole script."""
    setup, epoch, after, end = _setup(loop), _epoch(loop), _after_epoch(loop), _end(loop)
    again = _again(loop)
    head = MODELS.replace("DROPOUT", "0.2" if loop.dropout else "0.0")
    head = f"{head}\n\n{EVALUATIONS[loop.evaluation]}\n"
    head = head.replace("SEED", str(loop.seed % 1000)).replace("SAMPLES", str(loop.samples))
    if loop.frame == "trainer":
        return head + _trainer(loop, setup, epoch, after, end, again)
    calls = "train_epoch(epoch)\n"
    inner = calls if loop.frame == "functions" else epoch
    every = f"for epoch in {_epochs(loop, loop.epochs)}:\n{indent(inner + after, '    ')}"
    body = setup
    if loop.frame == "functions":
        body += f"\n\ndef train_epoch(epoch):\n{indent(epoch, '    ')}\n\n"
    body += every + (f"{again}{every}" if again else "") + end
    body = body.replace("@", "")
    if loop.frame != "main":
        return f"{head}\n{body}"
    guarded = 'if __name__ == "__main__":\n    main()\n'
    return f"{head}\n\ndef main():\n{indent(body, '    ')}\n\n{guarded}"


def _epochs(loop: Loop, count: object) -> str:
    return f"@run.epochs({count})" if loop.joined else f"range({count})"


def _trainer(loop: Loop, setup: str, epoch: str, after: str, end: str, again: str) -> str:
    inner = indent(f"@train_epoch(epoch)\n{after}", "    ")
    fit = f"for epoch in {_epochs(loop, 'epochs')}:\n{inner}"
    second = f"trainer.again()\ntrainer.fit({loop.epochs})\n" if again else ""
    methods = {
        "__init__(self)": setup,
        "train_epoch(self, epoch)": epoch,
        "fit(self, epochs)": fit,
        "again(self)": again or "pass\n",
        "end(self)": end,
    }
    text = "\n".join(f"def {name}:\n{indent(body, '    ')}" for name, body in methods.items())
    run = f"trainer = Trainer()\ntrainer.fit({loop.epochs})\n{second}trainer.end()\n"
    return f"\n\nclass Trainer:\n{indent(text, '    ')}\n\n{run}".replace("@", "self.")


def _setup(loop: Loop) -> str:
    lines = [DATA[loop.data], LOADERS[loop.loader]]
    valid = {"plain": "", "shuffled": ", shuffle=True"}.get(loop.validation)
    lines += [
        "@valid = @loader"
        if valid is None
        else f"@valid = DataLoader(make(13, 99), batch_size=4{valid})"
    ]
    lines += [
        "@model = Net().double()",
        "@state = {'steps': 0, 'best': None, 'figure': float('inf')}",
    ]
    if loop.adversarial:
        lines += ["@critic = Critic().double()", "@critic_optimizer = " + _made(loop, "@critic")]
    if loop.branch not in ("none", "odd", "frozen again"):
        lines += ["@model.extra.requires_grad_(False)"]
    lines += ["@optimizer = " + _made(loop, "@model")]
    made = [_joins(loop), SCHEDULES.get(loop.schedule, "")]
    lines += reversed(made) if loop.early_schedule else made
    if loop.scaled:
        lines += ["@scaler = torch.amp.GradScaler('cpu', init_scale=256.0, growth_interval=3)"]
    if loop.average == "by hand":
        lines += ["@average = copy.deepcopy(@model)"]
    if loop.average == "averaged":
        lines += ["@average = torch.optim.swa_utils.AveragedModel(@model)"]
    if loop.peeks:
        lines += ["first = next(iter(@loader))"]
    text = "\n".join(line for line in lines if line)
    for name, value in {
        "EPOCHS": loop.epochs,
        "BATCH": loop.batch,
        "DROP": loop.drop_last,
        "SAMPLES": loop.samples,
        "CYCLES": loop.optimizer in ("momentum", "adam"),
    }.items():
        text = text.replace(name, str(value))
    return text + "\n"


def _joins(loop: Loop) -> str:
    declared = ", loss='sum'" if loop.is_sum and loop.seed % 2 else ""
    return f"@run = join(@model, @optimizer{declared})" if loop.joined else ""


def _made(loop: Loop, model: str) -> str:
    given = f"{model}.parameters()"
    if model == "@model":
        if loop.branch.startswith("added"):
            given = "[p for p in @model.parameters() if p.requires_grad]"
        elif loop.groups == 2:
            given = (
                "[{'params': @model.first.parameters()}, "
                "{'params': [*@model.second.parameters(), *@model.extra.parameters()], "
                "'lr': 0.02}]"
            )
    return OPTIMIZERS[loop.optimizer].replace("GIVEN", given)


def _epoch(loop: Loop) -> str:
    """One pass over the data, from a name ``epoch``."""
    lines = ["torch.manual_seed(100 + epoch)"] if loop.reseeds else []
    if loop.branch in ("unfrozen", "added"):
        lines += ["if epoch == 1:", indent(_unfreeze(loop), "    ")]
    if loop.branch == "odd":
        lines += ["@model.with_extra = epoch % 2 == 1"]
    if loop.branch == "frozen again":
        frozen = "@model.extra.requires_grad_(False)\n@model.extra.zero_grad()"
        lines += ["if epoch == 1:", indent(frozen, "    ")]
    lines += ["@model.train()"]
    heads = {
        "enumerate": "for i, batch in enumerate(@loader):",
        "zip": "for i, batch in zip(range(1000), @loader):",
        "plain": "i = -1\nfor batch in @loader:\n    i += 1",
        "next": "batches = iter(@loader)\nfor i in range(len(@loader)):\n    batch = next(batches)",
        "islice": "for i, batch in enumerate(itertools.islice(@loader, 3)):",
    }
    head = heads[loop.through]
    if loop.joined:
        head = head.replace("@loader", "@run.batches(@loader)")
    lines += [head, indent(_batch(loop), "    ")]
    if loop.leftover == "after" and loop.accumulate > 1 and not loop.adversarial:
        lines += [f"if (i + 1) % {loop.accumulate}:", indent(_step(loop), "    ")]
    if loop.leftover == "drop" and loop.accumulate > 1:
        lines += ["@optimizer.zero_grad()"]
    return "\n".join(lines) + "\n"


def _unfreeze(loop: Loop) -> str:
    text = "@model.extra.requires_grad_(True)"
    if loop.branch.startswith("added"):
        text = f"if not @model.extra.weight.requires_grad:\n    {text}\n    " + (
            "@optimizer.add_param_group({'params': @model.extra.parameters()})"
        )
    return text


def _batch(loop: Loop) -> str:
    lines = [UNPACK[loop.data], "RESULT['seen'].append((epoch, ids.tolist()))"]
    if loop.leaves_at < 99:
        lines += [f"if i == {loop.leaves_at} and epoch == 0:\n    break"]
    if loop.skips != "none":
        lines += [f"if {'i % 3 == 1' if loop.skips == 'second' else 'i > 2'}:\n    continue"]
    if loop.branch.endswith("within"):
        lines += [f"if epoch == 1 and i == 1:\n{indent(_unfreeze(loop), '    ')}"]
    lines += _adversarial(loop) if loop.adversarial else _supervised(loop)
    if loop.schedule in ("onecycle", "cosine") and loop.per == "batch":
        lines += ["@schedule.step()"]
    if loop.logs:
        lines += ["RESULT['losses'].append(loss.item())"]
    if loop.evaluates == "every":
        lines += ["if i % 2 == 0:\n    RESULT['figures'].append(evaluate(@model, @valid))"]
        lines += ["    @model.train()"]
    return "\n".join(lines)


def _supervised(loop: Loop) -> list[str]:
    error = f"loss = {LOSSES[loop.loss]}".replace("BATCH", str(loop.batch))
    if loop.closure:
        inner = f"@optimizer.zero_grad()\nout = @model(x)\n{error}\nloss.backward()\nreturn loss"
        return [
            f"def closure():\n{indent(inner, '    ')}",
            "loss = @optimizer.step(closure)",
            _followed(loop),
        ]
    accumulates, lines = loop.accumulate > 1, []
    if ZEROS.get(loop.zero, "").startswith("TOP") and not accumulates:
        lines += [ZEROS.get(loop.zero, "").removeprefix("TOP")]
    divided = f" / {loop.accumulate}" if accumulates and loop.divided else ""
    second = f"loss = 0.3 * out.pow(2).{'sum' if loop.is_sum else 'mean'}()"
    for one in [error, second][: loop.losses]:
        lines += ["out = @model(x)", one, _backward(loop, f"loss{divided}")]
    if loop.clips_each:
        lines += [JOINED_CLIPS[loop.clip]]
    if not accumulates:
        return [*lines, _step(loop)]
    last = " or i + 1 == len(@loader)" if loop.leftover == "inside" else ""
    lines += [f"if (i + 1) % {loop.accumulate} == 0{last}:", indent(_step(loop), "    ")]
    return lines


def _backward(loop: Loop, loss: str) -> str:
    whole = f"@scaler.scale({loss})" if loop.scaled else f"({loss})"
    return f"@run.backward({whole})" if loop.joined == "run.backward" else f"{whole}.backward()"


def _step(loop: Loop) -> str:
    clip = "" if loop.clips_each else JOINED_CLIPS.get(loop.clip, "")
    lines = ["@scaler.unscale_(@optimizer)" if clip and loop.scaled else "", clip]
    given = ["scaler=@scaler"] if loop.scaled else []
    given += ["clip=0.5"] if loop.clip == "in the step" else []
    step = f"@run.step({', '.join(given)})" if loop.joined else "@optimizer.step()"
    if loop.scaled == "plain":
        step = "@scaler.step(@optimizer)\n@scaler.update()"
    lines += [step, _followed(loop)]
    if loop.accumulate > 1 or not ZEROS.get(loop.zero, "").startswith("TOP"):
        lines += [ZEROS.get(loop.zero, "").removeprefix("TOP")]
    return "\n".join(line for line in lines if line)


def _followed(loop: Loop) -> str:
    """What comes after a step."""
    lines = ["@state['steps'] += 1"]
    if loop.bounded:
        lines += [
            "with torch.no_grad():",
            "    for p in @model.parameters():",
            "        p.clamp_(-0.4, 0.4)",
        ]
    if loop.schedule in ("onecycle", "cosine") and loop.per == "step":
        lines += ["@schedule.step()"]
    if loop.schedule == "by hand":
        lines += [
            "for group in @optimizer.param_groups:",
            "    group['lr'] = 0.05 / (1 + @state['steps'] / 4)",
        ]
    if loop.average == "by hand":
        lines += [
            "with torch.no_grad():",
            "    for a, p in zip(@average.parameters(), @model.parameters()):",
            "        a.mul_(0.9).add_(p, alpha=0.1)",
        ]
    if loop.average == "averaged":
        lines += ["@average.update_parameters(@model)"]
    if loop.saves:
        lines += [
            f"if @state['steps'] == 3{' and @run.is_first' if loop.first_saves else ''}:",
            "    RESULT['saved'] = copy.deepcopy(@optimizer.state_dict())",
        ]
    return "\n".join(lines)


def _adversarial(loop: Loop) -> list[str]:
    bce = "nn.functional.binary_cross_entropy_with_logits"
    clip = CLIPS.get(loop.clip, "")
    return [
        "made = @model(x)",
        "real, fake = @critic(out_of(y)), @critic(made.detach())",
        f"critic_loss = {bce}(real, torch.ones_like(real)) + {bce}(fake, torch.zeros_like(fake))",
        "@critic_optimizer.zero_grad()\ncritic_loss.backward()",
        clip.replace("@model", "@critic"),
        "@critic_optimizer.step()",
        "@optimizer.zero_grad()\njudged = @critic(made)",
        f"loss = {bce}(judged, torch.ones_like(judged))\nloss.backward()",
        clip,
        f"@optimizer.step()\n{_followed(loop)}",
    ]


def _after_epoch(loop: Loop) -> str:
    lines = ["RESULT['epochs'] += 1"]
    if loop.evaluates == "epoch":
        figure = JOINED_EVALUATION if loop.asks else "evaluate(@model, @valid)"
        lines += [f"figure = {figure}", "RESULT['figures'].append(figure)"]
    if loop.best:
        lines += [
            "if figure < @state['figure']:",
            "    @state['figure'] = figure",
            "    @state['best'] = copy.deepcopy(@model.state_dict())",
        ]
    if loop.schedule in ("step", "lambda"):
        lines += ["@schedule.step()"]
    if loop.schedule == "plateau":
        lines += ["@schedule.step(figure)"]
    return "\n".join(lines) + "\n"


def _again(loop: Loop) -> str:
    if loop.trainings == 1:
        return ""
    if loop.again == "same":
        return "RESULT['epochs'] = 0\n"
    made = OPTIMIZERS["adam"].replace("GIVEN", "@model.parameters()")
    schedule = SCHEDULES.get(loop.schedule, "")
    return f"@optimizer = {made}\n{schedule}\n"


def _end(loop: Loop) -> str:
    lines = ["if @state['best'] is not None:", "    @model.load_state_dict(@state['best'])"]
    lines += ["RESULT['weights'] = kept(@model)", "RESULT['rates'] = rates(@optimizer)"]
    lines += ["RESULT['optimizer'] = copy.deepcopy(@optimizer.state_dict())"]
    if loop.average != "none":
        lines += ["RESULT['average'] = kept(@average)"]
    if loop.adversarial:
        lines += ["RESULT['critic'] = kept(@critic)"]
    return "\n".join(lines) + "\n"
