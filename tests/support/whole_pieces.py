# ruff: noqa: E501
"""Pieces of the scripts of ``whole_scripts``: models, losses, batches, steps, what comes after."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import indent


@dataclass(frozen=True)
class Model:
    text: str
    loss: str = "out = model(x)\n"
    """Up to a tensor ``out`` of one row for each sample, or to a ``loss``."""
    own_loss: bool = False
    random: bool = False
    twice: bool = True
    """Whether it can be differentiated twice."""
    plain_head: bool = False
    """Whether it has a linear layer ``model.head``."""


def _net(body: str, inner: str, given: str = "x", more: str = "") -> str:
    made = "\n".join(f"        {line}" for line in body.splitlines())
    forward = "\n".join(f"        {line}" for line in inner.splitlines())
    return (
        f"class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n{made}\n"
        f"        self.head = nn.Linear(8, 3)\n\n    def forward(self, {given}):\n{forward}\n{more}"
        "\nmodel = Net().double()\n"
    )


_FIRST = "self.first = nn.Linear(6, 8)"
_OWN = "return self.head(h)"
_H = "h = torch.tanh(self.first(x))\n"


def _plain(
    inside: str = "", made: str = "", call: str = "out = model(x)\n", after: str = "", **more: bool
) -> Model:
    """A linear layer, what is ``made`` beside it, what happens ``inside``, and a head."""
    first = f"{_FIRST}\n{made}" if made else _FIRST
    return Model(
        _net(first, f"{_H}{inside}\n{_OWN}" if inside else _H + _OWN) + after, call, **more
    )


def _norm(norm: str, after: str = "") -> Model:
    return _plain("h = self.norm(h)", f"self.norm = {norm}", after=after, plain_head=True)


def _headed(text: str, call: str = "out = model(x)\n") -> Model:
    return Model(text, call, plain_head=True)


def _returns(found: str, call: str) -> Model:
    return Model(_net(_FIRST, f"{_H}return {found}"), call)


def _loses(loss: str, call: str = "loss = model(x, y)\n", made: str = "") -> Model:
    """A model that returns its loss."""
    inside = (
        f"h = torch.tanh(self.first(x))\nout = self.head(h)\nreturn F.cross_entropy(out, y{loss}"
    )
    return Model(_net(f"{_FIRST}\n{made}" if made else _FIRST, inside, "x, y"), call, own_loss=True)


def _first_as(layer: str) -> Model:
    return Model(_net(f"self.first = {layer}", _H + _OWN))


_SEQ = "out = model(x.view(len(x), 3, 2).transpose(0, 1))\n"
_NET = _net(_FIRST, _H + _OWN)
_PACKED = "nn.utils.rnn.pack_padded_sequence(\n    x.view(len(x), 3, 2), sizes, batch_first=True, enforce_sorted=False)\n"
_CODES = "(x[:, 0] * 4).long().clamp(-8, 7) + 8"
_ACTS = "acts.clear()\nout = model(x)\nout = out + 0.1 * acts[0].std()\n"
_TABLE = "table = nn.Parameter(torch.randn(3, 8, dtype=torch.float64) * 0.3)\n"
_ENERGY = "e = torch.tanh(self.first(x)).pow(2).sum()\n(force,) = torch.autograd.grad(e, x, create_graph=True)\n"
_PUSHED = "return force[:, :3] + self.head(torch.tanh(self.first(x)))"


def _rnn(kind: str, inner: str, loss: str = _SEQ) -> Model:
    return Model(_net(f"self.rnn = nn.{kind}(2, 8)", inner, "x, h0=None"), loss, twice=False)


MODELS = {
    "mlp": _headed(_NET),
    "sequential": Model(
        "model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()\n"
    ),
    "batch norm": _norm("nn.BatchNorm1d(8)"),
    "batch norm eval": _norm("nn.BatchNorm1d(8)", "model.norm.eval()\n"),
    "batch norm frozen": Model(
        _net(
            f"{_FIRST}\nself.norm = nn.BatchNorm1d(8)",
            f"{_H}h = self.norm(h)\n{_OWN}",
            more="\n    def train(self, mode=True):\n        super().train(mode)\n"
            "        self.norm.eval()\n        return self\n",
        )
    ),
    "batch norm average": _norm("nn.BatchNorm1d(8, momentum=None)"),
    "batch norm untracked": _norm("nn.BatchNorm1d(8, track_running_stats=False)"),
    "batch norm bare": _norm("nn.BatchNorm1d(8, affine=False)"),
    "layer norm": _norm("nn.LayerNorm(8)"),
    "conv": Model(
        _net(
            "self.conv = nn.Conv2d(1, 4, 2)\nself.norm = nn.BatchNorm2d(4)\n"
            "self.group = nn.GroupNorm(2, 4)\nself.instance = nn.InstanceNorm2d(4, affine=True)",
            "h = self.norm(self.conv(x.view(len(x), 1, 2, 3)))\n"
            "h = self.instance(torch.relu(self.group(h)))\nreturn self.head(h.flatten(1))",
        )
    ),
    "instance norm tracked": Model(
        _net(
            "self.conv = nn.Conv2d(1, 4, 2)\n"
            "self.instance = nn.InstanceNorm2d(4, track_running_stats=True)",
            "h = self.instance(self.conv(x.view(-1, 1, 2, 3)))\nreturn self.head(h.flatten(1))",
        )
    ),
    "dict": _returns(
        "{'h': h, 'out': self.head(h), 'none': None, 'n': 3}",
        "found = model(x)\nout = found['out'] + 0 * found['h'].sum()\n",
    ),
    "tuple": _returns(
        "self.head(h), [h, None], h.pow(2).mean()",
        "out, (h, _), penalty = model(x)\nout = out + penalty\n",
    ),
    "named": Model(
        "Found = collections.namedtuple('Found', 'out aux')\n"
        + _net(_FIRST, f"{_H}return Found(self.head(h), h.mean(1))"),
        "found = model(x)\nout = found.out * found.aux.sigmoid()[:, None]\n",
    ),
    "data class": Model(
        "@dataclasses.dataclass\nclass Found:\n    out: torch.Tensor\n    loss: object = None\n\n\n"
        + _net(_FIRST, f"{_H}return Found(self.head(h))"),
        "out = model(x).out\n",
    ),
    "loss mean": _loses(")"),
    "loss sum": _loses(", reduction='sum')"),
    "loss ignores": _loses(", ignore_index=1), out", "loss, out = model(x, y)\n"),
    "loss ignores late": _loses(
        ", ignore_index=-100), out",
        "if state['step'] > 2:\n    y = torch.where(x[:, 0] > 0.5, -100, y)\n"
        "loss, out = model(x, y)\n",
    ),
    "loss weighs": _loses(
        ", weight=self.w, label_smoothing=0.1)",
        made="self.register_buffer('w', torch.tensor([1.0, 2.0, 0.5]))",
    ),
    "rnn": _rnn("RNN", "out, h = self.rnn(x)\nreturn self.head(h[0])"),
    "lstm": _rnn("LSTM", "out, (h, c) = self.rnn(x)\nreturn self.head(out[-1] + c[0])"),
    "gru given": _rnn(
        "GRU",
        "out, h = self.rnn(x, h0)\nreturn self.head(out[-1]), h",
        "h0 = torch.zeros(1, len(x), 8, dtype=x.dtype)\n"
        "out, h = model(x.view(len(x), 3, 2).transpose(0, 1), h0)\nout = out + h[0].sum(1)[:, None]\n",
    ),
    "bare gru": Model(
        "model = nn.ModuleDict({'rnn': nn.GRU(2, 8), 'head': nn.Linear(8, 3)}).double()\n",
        "out = model['head'](model['rnn'](x.view(len(x), 3, 2).transpose(0, 1))[1][0])\n",
        twice=False,
    ),
    "packed": Model(
        _net(
            "self.rnn = nn.LSTM(2, 8, batch_first=True)",
            "return self.head(self.rnn(packed)[1][0][0])",
            "packed",
        ),
        f"sizes = (y % 3 + 1).tolist()\npacked = {_PACKED}out = model(packed)\n",
        twice=False,
    ),
    "lengths": Model(
        _net(
            "self.rnn = nn.GRU(2, 8, batch_first=True)",
            f"p = {_PACKED}return self.head(self.rnn(p)[1][0])",
            "x, sizes",
        ),
        "out = model(x, y % 3 + 1)\n",
        twice=False,
    ),
    "mixes mean": _plain("h = h - h.mean(0)"),
    "mixes attention": _plain("h = (h @ h.T).softmax(1) @ h"),
    "mixes by zero": Model(
        _net(
            f"{_FIRST}\nself.mix = nn.Linear(8, 3)\nnn.init.zeros_(self.mix.weight)\n"
            "nn.init.zeros_(self.mix.bias)",
            f"{_H}return self.head(h) + self.mix(h - h.mean(0))",
        )
    ),
    "mixes by flag": _plain(
        "h = h - h.mean(0) if self.flag else h",
        "self.flag = False",
        "model.flag = state['step'] > 4\nout = model(x)\n",
    ),
    "constant size": Model(
        _net(
            f"{_FIRST}\nself.size = 4",
            f"{_H}return self.head(h.view(self.size, -1, 8)).view(-1, 3)",
        ),
        "model.size = len(x)\nout = model(x)\n",
    ),
    "keeps attributes": _plain(
        "self.calls += 1\nself.memory.append(h.detach().mean())\nself.last = h\n"
        "h = h * (1 + 0.01 * self.calls) + 0.1 * self.memory[-1]",
        "self.calls = 0\nself.memory = []\nself.last = None",
    ),
    "keeps a tensor": _plain(
        "self.average.mul_(0.9).add_(0.1 * h.detach().mean(0))\nh = h - self.average",
        "self.average = torch.zeros(8, dtype=torch.float64)",
    ),
    "keeps deep": Model(
        "class Stats:\n    def __init__(self):\n        self.calls, self.sizes = 0, {'n': [0]}\n"
        "        self.queue, self.array = collections.deque(maxlen=5), np.zeros(2)\n\n\n"
        + _net(
            f"{_FIRST}\nself.stats = Stats()",
            f"{_H}s = self.stats\ns.calls += 1\ns.sizes['n'][0] += 2\ns.queue.append(s.calls)\n"
            "s.array += 1\nh = h * (1 + 0.01 * (s.calls + sum(s.queue) + s.array.sum()))\n" + _OWN,
        )
    ),
    "counts globally": Model(
        "CALLS = []\ncount = 0\n"
        + _net(
            _FIRST,
            f"global count\ncount += 1\nCALLS.append(1)\n{_H}h = h * (1 + 0.01 * (len(CALLS) + count))\n"
            + _OWN,
        )
    ),
    "buffer counter": _plain(
        "self.seen += 1\nh = h / (1 + 0.1 * self.seen)",
        "self.register_buffer('seen', torch.zeros(()))",
    ),
    "spread buffer": _plain(
        f"self.spread = 0.9 * self.spread + 0.1 * h.detach().std(0)\n{_H}h = h / self.spread",
        "self.register_buffer('spread', torch.ones(8))",
    ),
    "hooked": Model(
        f"{_NET}acts = []\nmodel.first.register_forward_hook(lambda m, i, o: acts.append(o))\n",
        _ACTS,
    ),
    "hooked itself": Model(
        f"{_NET}acts = []\nmodel.register_forward_hook(lambda m, i, o: acts.append(o))\n", _ACTS
    ),
    "hooked late": Model(
        f"{_NET}acts = []\n",
        "if state['step'] == 3 and not model.first._forward_hooks:\n"
        "    model.first.register_forward_hook(lambda m, i, o: acts.append(o))\n"
        "acts.clear()\nout = model(x)\nout = out + 0.1 * acts[0].std() if acts else out\n",
    ),
    "tensor hook": Model(
        "found = []\n"
        + _net(
            _FIRST,
            f"{_H}if h.requires_grad:\n    h.register_hook(lambda g: found.append(g.norm()))\n{_OWN}",
        ),
        "out = model(x)\nout = out * (1 + 0.1 * found[-1]) if found else out\n",
    ),
    "dropout": _plain("h = self.drop(h)", "self.drop = nn.Dropout(0.3)", random=True),
    "noise": _plain("h = h + 0.1 * torch.randn_like(h) * torch.rand(len(x), 1)", random=True),
    "layer drop": _plain(
        "if random.random() < 0.5 or not self.training:\n    h = h + self.extra(h)\n"
        "if torch.rand(()) < 0.5:\n    h = h * np.random.rand()",
        "self.extra = nn.Linear(8, 8)",
    ),
    "draws with numpy": _plain("h = h + 0.1 * torch.from_numpy(np.random.rand(len(x), 8))"),
    "checkpoint": Model(
        _net(
            f"{_FIRST}\nself.norm = nn.BatchNorm1d(8)",
            "h = checkpoint(lambda x: F.dropout(self.norm(torch.tanh(self.first(x))), 0.2), x,"
            " use_reentrant=False)\n" + _OWN,
        ),
        random=True,
        twice=False,
    ),
    "checkpoint reentrant": Model(
        _net(
            _FIRST,
            "h = self.first(x)\nh = checkpoint(lambda h: torch.tanh(self.head(h)), h,"
            " use_reentrant=True)\nreturn h",
        ),
        twice=False,
    ),
    "data parallel": Model(f"{_NET}model = nn.DataParallel(model)\n"),
    "spectral": _first_as("nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8))"),
    "spectral old": _first_as("nn.utils.spectral_norm(nn.Linear(6, 8))"),
    "weight norm": _first_as("nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))"),
    "weight norm old": _first_as("nn.utils.weight_norm(nn.Linear(6, 8))"),
    "functional": _headed(
        _NET,
        "fast = {k: p * 1.01 for k, p in model.named_parameters()}\n"
        "out = torch.func.functional_call(model, fast, (x,))\n",
    ),
    "vmap": Model(_NET, "out = torch.func.vmap(model)(x)\n", twice=False, plain_head=True),
    "submodules": _headed(_NET, "out = model.head(torch.tanh(model.first(x)))\n"),
    "no call": _headed(
        _NET, "h = torch.tanh(x @ model.first.weight.T + model.first.bias)\nout = model.head(h)\n"
    ),
    "tied": Model(
        _net(
            "self.first = nn.Linear(6, 8, bias=False)\nself.back = nn.Linear(8, 6)\n"
            "self.up = nn.Linear(8, 6)\nself.up.weight = nn.Parameter(self.back.weight.data)\n"
            "self.back.weight = self.up.weight",
            f"{_H}return self.head(h) + 0.1 * (self.back(h) + self.up(h))[:, :3]",
        ),
    ),
    "tied elsewhere": Model(
        _TABLE
        + _net(f"{_FIRST}\nself.held = [table]", f"{_H}return self.head(h) + h @ self.held[0].T")
        + "model.register_forward = None\n",
    ),
    "loose parameter": Model(
        f"{_TABLE}{_net(_FIRST, f'{_H}return self.head(h) + h @ table.T')}loose = [table]\n"
    ),
    "two calls": _headed(_NET, "out = model(x) + 0.5 * model(x + 0.1 * torch.randn_like(x))\n"),
    "siamese": _headed(_NET, "a, b = model(x), model(x.flip(0))\nout = a + 0.1 * (a - b).abs()\n"),
    "nested inputs": Model(
        _net(
            _FIRST,
            "x, z = given['x'], given['more'][1]\nh = torch.tanh(self.first(x * scale + z))\n"
            + _OWN,
            "given, *, scale=1.0",
        ),
        "out = model({'x': x, 'more': [None, x.mean(0)]}, scale=0.5 + 0.1 * state['step'])\n",
    ),
    "no tensor": Model(
        _net(f"{_FIRST}\nself.noise = nn.Parameter(torch.ones(3))", "return self.noise * 2", "")
        + "body = nn.Linear(6, 3).double()\nmodel.body = body\n",
        "out = model.body(x) * model()\n",
    ),
    "distribution": _returns(
        "torch.distributions.Categorical(logits=self.head(h))", "out = model(x).logits\n"
    ),
    "energy": Model(
        _net(
            _FIRST,
            "with torch.enable_grad():\n    x = x.detach().requires_grad_()\n"
            + indent(_ENERGY, "    ")
            + _PUSHED,
        )
    ),
    "energy of inputs": Model(
        _net(_FIRST, f"x.requires_grad_()\n{_ENERGY}{_PUSHED}"),
        "with torch.enable_grad():\n    out = model(x.clone())\n",
    ),
    "writes its input": Model(
        _net(_FIRST, f"x.mul_(0.9)\n{_H}{_OWN}"),
        "z = x.clone()\nout = model(z) + 0.1 * z.sum(1)[:, None]\n",
    ),
    "complex": Model(
        _net(
            "self.first = nn.Linear(6, 8)\nself.turn = nn.Parameter(torch.randn(8, dtype=torch.cfloat))",
            f"{_H}h = (h.to(torch.cdouble) * self.turn).abs()\n{_OWN}",
        ).replace(
            "model = Net().double()\n",
            "model = Net()\nmodel.first.double()\nmodel.head.double()\n",
        ),
    ),
    "lazy": Model(_net("self.first = nn.LazyLinear(8)", _H + _OWN) + "model(x_all[:2])\n"),
    "bfloat16": Model(
        _NET.replace(".double()", ""),
        "with torch.autocast('cpu', torch.bfloat16):\n    out = model(x.float())\nout = out.double()\n",
        twice=False,
    ),
    "scripted": Model(
        "model = torch.jit.trace(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double(),"
        " torch.zeros(2, 6, dtype=torch.float64))\n",
        twice=False,
    ),
    "embedding": Model(
        _net(
            "self.table = nn.Embedding(16, 8, padding_idx=3)",
            "return self.head(self.table(codes))",
            "codes",
        ),
        f"out = model({_CODES})\n",
        twice=False,
    ),
    "teacher": _plain(
        "h = self.norm(h)",
        "self.norm = nn.BatchNorm1d(8)",
        "out = model(x)\nwith torch.no_grad():\n    soft = teacher(x)\n"
        "    for a, b in zip(teacher.parameters(), model.parameters()):\n"
        "        a.lerp_(b, 0.1)\nout = out + 0.1 * (out - soft).pow(2).mean()\n",
        "teacher = copy.deepcopy(model)\n",
    ),
    "frozen": Model(
        f"{_NET}features = nn.Linear(6, 6).double().requires_grad_(False)\n",
        "out = model(features(x))\n",
    ),
    "transformer": Model(
        _net(
            "self.up = nn.Linear(2, 8)\n"
            "self.body = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)",
            "h = self.body(self.up(x.view(len(x), 3, 2)))\nreturn self.head(h.mean(1))",
        ),
        twice=False,
    ),
    "attention": Model(
        _net(
            "self.up = nn.Linear(2, 8)\nself.body = nn.MultiheadAttention(8, 2)",
            "h = self.up(x)\nh, w = self.body(h, h, h)\nreturn self.head(h[0]), w",
        ),
        "out, w = model(x.view(len(x), 3, 2).transpose(0, 1))\nout = out * w.mean()\n",
        twice=False,
    ),
    "branches": Model(
        _net(
            f"{_FIRST}\nself.other = nn.Linear(6, 8)",
            "h = torch.tanh(self.other(x) if which else self.first(x))\n" + _OWN,
            "x, which",
        ),
        "out = model(x, state['step'] % 2 == 0)\n",
    ),
}


def _late(loss: str, otherwise: str = "F.cross_entropy(out, y)") -> str:
    return f"loss = {otherwise}\nif state['step'] >= 5:\n    loss = loss + {loss}\n"


_UNIT = "h = F.normalize(out, dim=1)\n"
LOSSES = {
    "plain": "loss = F.cross_entropy(out, y)\n",
    "sum": "loss = F.cross_entropy(out, y, reduction='sum') / len(x)\n",
    "rows": "loss = sum((o - t).square().mean() for o, t in zip(out, y))\n",
    "length": "loss = F.cross_entropy(out, y) * (len(x) / BATCH)\n",
    "warm": _late("0.1 * out.std(0).sum()"),
    "hard": "each = F.cross_entropy(out, y, reduction='none')\nloss = each.topk(max(1, len(x) // 2))[0].mean()\n",
    "hard late": "each = F.cross_entropy(out, y, reduction='none')\n"
    "loss = each.mean() if state['step'] < 5 else each.topk(max(1, len(x) // 2))[0].sum()\n",
    "dice": "p = out.softmax(1)\nt = F.one_hot(y, 3).to(p.dtype)\n"
    "loss = 1 - (2 * (p * t).sum(0) / ((p + t).sum(0) + 1)).mean()\n",
    "contrastive": f"{_UNIT}pull = (h @ h.T / 0.5)\nloss = F.cross_entropy(pull, torch.arange(len(x)))\n",
    "supervised contrastive": f"{_UNIT}s = h @ h.T\nsame = (y[:, None] == y).to(s.dtype)\n"
    "loss = -(s.log_softmax(1) * same).sum() / same.sum()\n",
    "triplet": "d = torch.cdist(out, out.flip(0) + 0.01)\nsame = y[:, None] == y.flip(0)\n"
    "far = d.masked_fill(~same, -1e9).amax(1)\nnear = d.masked_fill(same, 1e9).amin(1)\n"
    "loss = F.relu(far.clamp(-10, 10) - near.clamp(-10, 10) + 1).mean()\n",
    "normalised": "t = y.to(out.dtype)\nt = (t - t.mean()) / (t.std(correction=0) + 0.1)\n"
    "loss = (out[:, 0] - t).pow(2).mean()\n",
    "averaged": "loss = F.cross_entropy(out, y)\n"
    "state['mean'] = 0.9 * state['mean'] + 0.1 * float(loss)\nloss = loss / state['mean']\n",
    "centres": "centres = state.setdefault('centres', torch.zeros(3, out.shape[1], dtype=out.dtype))\n"
    "loss = F.cross_entropy(out, y) + 0.1 * (out - centres[y]).pow(2).mean()\n"
    "for c in range(3):\n    if (y == c).any():\n"
    "        centres[c].lerp_(out.detach()[y == c].mean(0), 0.3)\n",
    "bank": "bank = state.setdefault('bank', [])\nloss = F.cross_entropy(out, y)\n"
    "if bank:\n    loss = loss + 0.1 * (out @ torch.cat(bank).T).logsumexp(1).mean()\n"
    "bank.append(out.detach())\ndel bank[:-3]\n",
    "l1": "loss = F.cross_entropy(out, y) + 1e-3 * sum(p.abs().sum() for p in model.parameters())\n",
    "orthogonal": "loss = F.cross_entropy(out, y)\nfor p in model.parameters():\n"
    "    if p.dim() == 2 and not p.is_complex():\n"
    "        loss = loss + 1e-2 * (p @ p.T - torch.eye(len(p), dtype=p.dtype)).pow(2).sum()\n",
}


@dataclass(frozen=True)
class Batches:
    setup: str
    loop: str = "for x, y in loader:\n"


_SET = "dataset = TensorDataset(x_all, y_all)\n"
BATCHES = {
    "plain": Batches(_SET + "loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)\n"),
    "dropped": Batches(
        _SET + "loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True)\n",
        "for i, (x, y) in enumerate(loader):\n",
    ),
    "normalised": Batches(
        _SET + "loader = DataLoader(dataset, batch_size=BATCH)\n",
        "for x, y in loader:\n    x = (x - x.mean(0)) / (x.std(0, correction=0) + 0.1)\n",
    ),
    "zip": Batches(
        _SET + "loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)\n"
        "other = DataLoader(dataset, batch_size=BATCH, shuffle=True)\n",
        "for (x, y), (z, _) in zip(loader, other):\n    x = x + 0.1 * z\n",
    ),
    "cycle": Batches(
        _SET + "loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)\n"
        "other = DataLoader(dataset, batch_size=2)\nround_and_round = itertools.cycle(other)\n",
        "for x, y in loader:\n    z, t = next(round_and_round)\n"
        "    x, y = torch.cat([x, z]), torch.cat([y, t])\n",
    ),
    "nested": Batches(
        _SET + "loader = DataLoader(dataset, batch_size=BATCH)\n"
        "other = DataLoader(dataset, batch_size=2 * BATCH)\n",
        "for z, _ in other:\n  for x, y in loader:\n    x = x + 0.1 * z.mean(0)\n",
    ),
    "stream": Batches(
        "class Stream(IterableDataset):\n    def __iter__(self):\n"
        "        return zip(x_all, y_all)\n\n\nloader = DataLoader(Stream(), batch_size=BATCH)\n"
    ),
    "unbatched": Batches(
        "class Whole(IterableDataset):\n    def __iter__(self):\n"
        "        return zip(x_all.split(BATCH), y_all.split(BATCH))\n\n\n"
        "loader = DataLoader(Whole(), batch_size=None)\n"
    ),
    "unequal": Batches(
        _SET + "sampler = [list(range(i, min(COUNT, i + 1 + i % 5))) for i in range(0, COUNT, 5)]\n"
        "loader = DataLoader(dataset, batch_sampler=sampler)\n",
    ),
}


@dataclass(frozen=True)
class More:
    setup: str = ""
    inside: str = ""
    before: str = ""
    after: str = ""


_BACK = "optimizer.zero_grad()\nloss = loss_of(x, y)\nloss.backward()\n"
STEPS = {
    "plain": f"{_BACK}optimizer.step()\n",
    "clipped": f"{_BACK}"
    "norm = nn.utils.clip_grad_norm_(model.parameters(), 0.3)\nstate['norm'] = float(norm)\n"
    "optimizer.step()\n",
    "clipped by value": f"{_BACK}"
    "nn.utils.clip_grad_value_(model.parameters(), 0.02)\noptimizer.step()\n",
    "edited": f"{_BACK}"
    "for p in model.parameters():\n    if p.grad is not None:\n"
    "        p.grad -= 0.5 * p.grad.mean()\noptimizer.step()\n",
    "hook clamps": f"{_BACK}optimizer.step()\n",
    "hook rarely": f"{_BACK}optimizer.step()\n",
    "summed": "loss = loss_of(x, y)\n(loss * len(x) / (2 * BATCH)).backward()\n"
    "if (state['step'] + 1) % 2 == 0:\n    optimizer.step()\n    optimizer.zero_grad()\n",
    "by grad": "loss = loss_of(x, y)\n"
    "ps = [p for p in model.parameters() if p.requires_grad]\n"
    "gs = torch.autograd.grad(loss, ps, allow_unused=True)\n"
    "for p, g in zip(ps, gs):\n    p.grad = g\n(loss.detach() * torch.ones((), requires_grad=True))"
    ".backward()\noptimizer.step()\n",
    "two losses": "loss = loss_of(x, y)\nsecond = loss_of(x.flip(1), y)\n"
    "ps = [p for p in model.parameters() if p.requires_grad]\n"
    "a = torch.autograd.grad(loss, ps, retain_graph=True, allow_unused=True)\n"
    "b = torch.autograd.grad(second, ps, allow_unused=True)\n"
    "for p, g, h in zip(ps, a, b):\n    if g is None or h is None or g.is_complex():\n"
    "        p.grad = g\n        continue\n"
    "    dot = (g * h).sum()\n"
    "    p.grad = g - dot / (h.norm() ** 2 + 1e-3) * h if dot < 0 else g + h\n"
    "(0 * loss_of(x, y)).backward()\noptimizer.step()\n",
    "penalty": "optimizer.zero_grad()\nz = x.clone().requires_grad_()\nloss = loss_of(z, y)\n"
    "(g,) = torch.autograd.grad(loss, z, create_graph=True, allow_unused=True)\n"
    "if g is not None:\n    loss = loss + 0.1 * (g * len(x)).pow(2).sum(1).mean()\n"
    "loss.backward()\noptimizer.step()\n",
    "hessian": "optimizer.zero_grad()\nloss = loss_of(x, y)\n"
    "ps = [p for p in model.parameters() if p.requires_grad]\n"
    "gs = torch.autograd.grad(loss, ps, create_graph=True, allow_unused=True)\n"
    "loss = loss + 0.01 * sum(g.abs().pow(2).sum() for g in gs if g is not None)\n"
    "loss.backward()\noptimizer.step()\n",
    "sharpness": f"{_BACK}"
    "ps = [p for p in model.parameters() if p.grad is not None]\nold = [p.data.clone() for p in ps]\n"
    "for p in ps:\n    p.data = p.data + 0.05 * p.grad / (p.grad.norm() + 1e-9)\n"
    "optimizer.zero_grad()\nloss_of(x, y).backward()\n"
    "for p, value in zip(ps, old):\n    p.data = value\noptimizer.step()\n",
    "closure": "def closure():\n    optimizer.zero_grad()\n    loss = loss_of(x, y)\n"
    "    loss.backward()\n    return loss\n\nloss = optimizer.step(closure)\n",
    "adversarial": "optimizer.zero_grad()\nz = x.clone().requires_grad_()\nloss_of(z, y).backward()\n"
    "near = (x if z.grad is None else x + 0.05 * z.grad.sign()).detach()\n"
    "optimizer.zero_grad()\nloss = loss_of(near, y)\nloss.backward()\noptimizer.step()\n",
}
_GIVEN = "[*model.parameters(), *globals().get('loose', [])]"
OPTIMIZERS = {
    "sgd": f"optimizer = torch.optim.SGD({_GIVEN}, lr=0.1)\n",
    "momentum": f"optimizer = torch.optim.SGD({_GIVEN}, lr=0.05, momentum=0.9)\n",
    "adam": f"optimizer = torch.optim.Adam({_GIVEN}, lr=0.01, eps=1e-3)\n",
    "adamw": f"optimizer = torch.optim.AdamW({_GIVEN}, lr=0.01, eps=1e-3)\n",
}
AFTER = {
    "rate by samples": More(
        inside="for group in optimizer.param_groups:\n"
        "    group['lr'] = 0.05 / (1 + state['seen'] / 20)\n"
    ),
    "stop by samples": More(
        inside="if state['seen'] >= 2 * COUNT + 3:\n    state['stop'] = True\n    break\n"
    ),
    "decay by length": More(
        inside="with torch.no_grad():\n    for p in model.parameters():\n"
        "        p.mul_(1 - 1e-3 * len(x))\n"
    ),
    "cleared": More(inside="if state['step'] == 4:\n    optimizer.state.clear()\n"),
    "group": More(
        setup="late = nn.Parameter(torch.zeros(3, dtype=torch.float64))\n",
        inside="if state['step'] == 3:\n    optimizer.add_param_group({'params': [late], 'lr': 0.02})\n",
    ),
    "replaced": More(
        inside="if state['step'] == 4:\n"
        "    model.head.weight = nn.Parameter(model.head.weight.detach() * 0.5)\n"
        "    optimizer = type(optimizer)(model.parameters(), lr=0.01)\n"
    ),
    "average": More(
        setup="average = copy.deepcopy(model.state_dict())\n",
        inside="for k, v in model.state_dict().items():\n    if v.is_floating_point():\n"
        "        average[k].lerp_(v, 0.1)\n",
    ),
    "evaluates inside": More(
        inside="if state['step'] % 3 == 0:\n    model.eval()\n    with torch.no_grad():\n"
        "        held = loss_of(x_all[:7], y_all[:7])\n    model.train()\n"
        "    losses.append(float(held))\n"
    ),
    "evaluates with gradients": More(
        inside="if state['step'] % 3 == 0:\n    model.eval()\n"
        "    losses.append(float(loss_of(x_all[:7], y_all[:7])))\n    model.train()\n"
    ),
    "evaluates one": More(
        inside="if state['step'] % 4 == 0:\n    model.eval()\n    with torch.no_grad():\n"
        "        losses.append(float(loss_of(x_all[:1], y_all[:1])))\n    model.train()\n"
    ),
}
EPOCHS = {
    "unfrozen": More(
        setup="first = next(model.parameters())\nfirst.requires_grad_(False)\n",
        before="if epoch == 1:\n    first.requires_grad_(True)\n",
    ),
    "plateau": More(
        setup="plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)\n",
        after="model.eval()\nwith torch.no_grad():\n    held = float(loss_of(x_all[:9], y_all[:9]))\n"
        "plateau.step(held)\nlosses.append(held)\n",
    ),
    "early stopping": More(
        after="model.eval()\nwith torch.no_grad():\n    held = float(loss_of(x_all, y_all))\n"
        "if held > state['best'] - 0.01:\n    state['stop'] = True\n"
        "state['best'] = min(state['best'], held)\nlosses.append(held)\n",
    ),
    "critic": More(
        setup="critic = nn.Linear(3, 1).double()\n"
        "critic_optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)\n",
    ),
    "saved": More(
        after="best = copy.deepcopy(model.state_dict())\nmodel.load_state_dict(best)\n",
    ),
    "reseeded": More(before="torch.manual_seed(100 + epoch)\n"),
}
