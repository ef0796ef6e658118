"""The decoder that make_moe.py trains, with SmolLM2's dense MLPs or with Qwen3-MoE's experts and head norms."""
import hashlib
import json
import pathlib
import shutil

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

EXPERTS, CHOSEN = 8, 2
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def parameter(*shape):
  return nn.Parameter(torch.zeros(shape))


def linear(x, weight):
  return F.linear(x, weight.to(x.dtype))


def norm(x, weight, epsilon):
  return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), epsilon)


def rotated(x, angles):
  """x [B, heads, T, D], angles [T, D/2]: pairs are a half of D apart."""
  cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
  a, b = x.chunk(2, -1)
  return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
  """Grouped queries; with norms of each head's queries and keys if `has_norms`."""

  def __init__(self, c, has_norms):
    super().__init__()
    self.heads, self.kv_heads, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    self.epsilon, self.has_norms = c["rms_norm_eps"], has_norms
    hidden = c["hidden_size"]
    self.q_proj, self.o_proj = parameter(self.heads * self.dim, hidden), parameter(hidden, self.heads * self.dim)
    self.k_proj, self.v_proj = parameter(self.kv_heads * self.dim, hidden), parameter(self.kv_heads * self.dim, hidden)
    if has_norms:
      self.q_norm, self.k_norm = parameter(self.dim), parameter(self.dim)

  def project(self, x):
    """x [B, T, H] -> queries [B, heads, T, D], keys and values [B, kv_heads, T, D]"""
    return [linear(x, w).unflatten(-1, (-1, self.dim)).transpose(1, 2) for w in (self.q_proj, self.k_proj, self.v_proj)]

  def forward(self, x, angles):
    q, k, v = self.project(x)
    if self.has_norms:
      q, k = norm(q, self.q_norm, self.epsilon), norm(k, self.k_norm, self.epsilon)
    y = F.scaled_dot_product_attention(rotated(q, angles), rotated(k, angles), v, is_causal=True, enable_gqa=True)
    return linear(y.transpose(1, 2).flatten(2), self.o_proj)


class Mlp(nn.Module):

  def __init__(self, c):
    super().__init__()
    hidden, width = c["hidden_size"], c["intermediate_size"]
    self.gate_proj, self.up_proj, self.down_proj = parameter(width, hidden), parameter(width, hidden), parameter(hidden, width)

  def forward(self, x):
    return linear(F.silu(linear(x, self.gate_proj)) * linear(x, self.up_proj), self.down_proj)


class Experts(nn.Module):
  """EXPERTS gated MLPs of half the dense width, CHOSEN for each token by a router; their weights add up to 1."""

  def __init__(self, c):
    super().__init__()
    hidden, width = c["hidden_size"], c["intermediate_size"] // 2
    self.router = parameter(EXPERTS, hidden)
    self.gate_proj, self.up_proj = parameter(EXPERTS, width, hidden), parameter(EXPERTS, width, hidden)
    self.down_proj = parameter(EXPERTS, hidden, width)

  def forward(self, x):
    """x [..., H]; leaves the balance, 1 if all experts see equally many tokens, and the experts' shares."""
    shape, x = x.shape, x.flatten(0, -2)
    chances = F.linear(x.float(), self.router).softmax(-1)
    weights, chosen = chances.topk(CHOSEN)
    weights = (weights / weights.sum(-1, keepdim=True)).flatten()
    expert = chosen.flatten()
    counts = (expert[:, None] == torch.arange(EXPERTS, device=x.device)).sum(0)
    self.shares = counts / len(expert)
    self.balance = EXPERTS * (self.shares * chances.mean(0)).sum()
    # Rows of each expert, filled up with zeros to those of the one with the most.
    order = expert.argsort()
    expert, token, most = expert[order], order // CHOSEN, int(counts.max())
    first = counts.cumsum(0) - counts
    row = expert * most + torch.arange(len(order), device=x.device) - first[expert]
    rows = x.new_zeros(EXPERTS * most, x.shape[1]).index_copy(0, row, x.index_select(0, token)).unflatten(0, (EXPERTS, most))
    gate, up, down = (w.to(x.dtype).transpose(1, 2) for w in (self.gate_proj, self.up_proj, self.down_proj))
    y = torch.bmm(F.silu(torch.bmm(rows, gate)) * torch.bmm(rows, up), down).flatten(0, 1).index_select(0, row)
    y = y * weights[order, None].to(x.dtype)
    return torch.zeros_like(x).index_add(0, token, y).view(shape)

  @torch.no_grad()
  def deal(self, dense, inputs, generator):
    """Deals the channels of a dense MLP to pairs of experts, each pair has all of them; the router tells pairs apart.

    Two rows of the router that are equal choose a pair with weights of 1/2, which is the dense MLP. inputs [N, H] are its.
    """
    width, hidden = self.gate_proj.shape[1:]
    for pair in range(EXPERTS // 2):
      order = torch.randperm(2 * width, generator=generator).to(inputs.device)
      for e, channels in zip((2 * pair, 2 * pair + 1), order.chunk(2)):
        self.gate_proj[e], self.up_proj[e] = dense.gate_proj[channels], dense.up_proj[channels]
        self.down_proj[e] = 2 * dense.down_proj[:, channels]
    inputs = inputs.float()
    mean = inputs.mean(0)
    directions = torch.randn(EXPERTS // 2, hidden, generator=generator).to(inputs.device)
    directions -= (directions @ mean / (mean @ mean))[:, None] * mean  # or one pair would have nearly all tokens
    directions /= (inputs @ directions.T).std(0)[:, None]
    noise = torch.randn(EXPERTS, hidden, generator=generator).to(inputs.device)
    noise *= 0.02 / (inputs @ noise.T).std(0)[:, None]
    self.router.copy_(directions.repeat_interleave(2, 0) + noise)


class Layer(nn.Module):

  def __init__(self, c, is_moe):
    super().__init__()
    self.epsilon = c["rms_norm_eps"]
    self.input_layernorm, self.post_attention_layernorm = parameter(c["hidden_size"]), parameter(c["hidden_size"])
    self.self_attn = Attention(c, has_norms=is_moe)
    self.mlp = Experts(c) if is_moe else Mlp(c)

  def forward(self, x, angles):
    x = x + self.self_attn(norm(x, self.input_layernorm, self.epsilon), angles)
    return x + self.mlp(norm(x, self.post_attention_layernorm, self.epsilon))


class Model(nn.Module):
  """The embedding is the head. Activations are of `dtype`, parameters F32."""

  def __init__(self, c, is_moe, dtype=torch.float32):
    super().__init__()
    self.config, self.dtype = c, dtype
    self.embed_tokens, self.norm = parameter(c["vocab_size"], c["hidden_size"]), parameter(c["hidden_size"])
    self.layers = nn.ModuleList(Layer(c, is_moe) for _ in range(c["num_hidden_layers"]))

  def angles(self, length):
    c = self.config
    frequencies = c["rope_theta"]**(-torch.arange(0, c["head_dim"], 2, device=self.norm.device).float() / c["head_dim"])
    return torch.outer(torch.arange(length, device=self.norm.device).float(), frequencies)

  def embed(self, tokens):
    return F.embedding(tokens, self.embed_tokens).to(self.dtype)

  def forward(self, tokens):
    """tokens [B, T] -> what the head reads, [B, T, H]"""
    x, angles = self.embed(tokens), self.angles(tokens.shape[1])
    for layer in self.layers:
      x = layer(x, angles)
    return norm(x, self.norm, self.config["rms_norm_eps"])

  def head(self, hidden):
    return linear(hidden, self.embed_tokens).float()


def load_dense(folder, layers=None, dtype=torch.float32):
  """SmolLM2, or its first layers."""
  config = json.loads((folder / "config.json").read_text())
  config["num_hidden_layers"] = layers or config["num_hidden_layers"]
  if not config["tie_word_embeddings"] or config["model_type"] != "llama":
    raise SystemExit(f"{folder}: expected a Llama model whose head is its embedding, found {config['model_type']}")
  tensors = {}
  for file in sorted(folder.glob("*.safetensors")):
    tensors |= load_file(file)
  model = Model(config, is_moe=False, dtype=dtype)
  model.load_state_dict({name: tensors[f"model.{name}.weight"].float() for name in model.state_dict()})
  return model.requires_grad_(False)


@torch.no_grad()
def deal(dense, tokens, seed):
  """-> the model of experts that dense is dealt to. tokens [B, T] say how long queries and keys are, and how inputs lie."""
  moe = Model(dense.config, is_moe=True, dtype=dense.dtype).to(tokens.device)
  own = dense.state_dict()
  moe.load_state_dict({name: own[name] for name in moe.state_dict() if name in own and ".mlp." not in name}, strict=False)
  generator = torch.Generator().manual_seed(seed)
  x, angles, epsilon = dense.embed(tokens), dense.angles(tokens.shape[1]), dense.config["rms_norm_eps"]
  for source, layer in zip(dense.layers, moe.layers):
    inputs = norm(x, source.input_layernorm, epsilon)
    for part, weight in zip(source.self_attn.project(inputs), (layer.self_attn.q_norm, layer.self_attn.k_norm)):
      weight.fill_(part.float().square().mean(-1).log().mean().div(2).exp())  # the mean length, so that scores keep their size
    x = x + source.self_attn(inputs, angles)
    inputs = norm(x, source.post_attention_layernorm, epsilon)
    layer.mlp.deal(source.mlp, inputs.flatten(0, 1), generator)
    x = x + source.mlp(inputs)
  return moe


def checkpoint_tensors(moe):
  """Name to tensor, with Qwen3-MoE's names, BF16 on the CPU."""
  tensors = {}
  for name, value in moe.state_dict().items():
    value = value.to("cpu", torch.bfloat16)
    leaf = name.rpartition(".")[2]
    if ".mlp." in name and leaf in PROJECTIONS:
      for e in range(EXPERTS):
        tensors[f"model.{name.removesuffix(leaf)}experts.{e}.{leaf}.weight"] = value[e].contiguous()
    else:
      tensors[f"model.{name.replace('mlp.router', 'mlp.gate')}.weight"] = value.contiguous()
  return tensors


def save(moe, source, out):
  """Writes the checkpoint with the tokenizer of source; -> SHA-256 of the weight file."""
  out.mkdir(parents=True)
  save_file(checkpoint_tensors(moe), out / "model.safetensors", metadata={"format": "pt"})
  config = {key: value for key, value in moe.config.items() if key != "mlp_bias"} | {
      "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": EXPERTS, "num_experts_per_tok": CHOSEN,
      "moe_intermediate_size": moe.config["intermediate_size"] // 2, "norm_topk_prob": True, "decoder_sparse_step": 1,
      "mlp_only_layers": [], "use_sliding_window": False}
  (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
  for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
    if (source / name).exists():
      shutil.copyfile(source / name, out / name)
  with open(pathlib.Path(out, "model.safetensors"), "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
