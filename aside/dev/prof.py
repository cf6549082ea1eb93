import sys, time, torch
from torch.profiler import profile, ProfilerActivity
from model.families.sizes import SIZES
from model.kinds.deepseek_v4 import attention as kinds
from model.layers.deepseek_v4.attention import Attention, Shape, Index
from model.layers.deepseek_v4.rotary import Rope, Yarn
size = SIZES["v4_medium"]
def shape(kind):
    a, y = size.attention, size.attention.yarn
    yarn = Yarn(y.factor, y.original_positions, y.beta_fast, y.beta_slow)
    return Shape(size.hidden, size.heads, a.head_dim, a.q_lora_rank, a.o_groups, a.o_lora_rank, a.window,
        kind.ratio if isinstance(kind, kinds.Compressed) else 0,
        Index(kind.indexer.heads, kind.indexer.head_dim, kind.indexer.topk) if isinstance(kind, kinds.Csa) else None,
        Rope(a.qk_rope_head_dim, a.rope_theta), Rope(a.qk_rope_head_dim, a.compress_rope_theta, yarn), size.rms_norm_eps)
cu = torch.tensor([0, 3000, 4096], dtype=torch.int32, device="cuda")
def timed(name, call, table=False):
    for _ in range(2): call()
    torch.cuda.synchronize(); times = []
    for _ in range(3):
        b = time.perf_counter(); call(); torch.cuda.synchronize(); times.append((time.perf_counter() - b) * 1e3)
    print(f"{name}: {sorted(times)[1]:.1f} ms, peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True); torch.cuda.reset_peak_memory_stats()
    if table:
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p: call(); torch.cuda.synchronize()
        print(p.key_averages().table(sort_by="self_cuda_time_total", row_limit=14, max_name_column_width=60), flush=True)
for precision in ("highest", "high"):
    torch.set_float32_matmul_precision(precision)
    for kind in ("csa", "hca", "sliding"):
        layer = Attention(shape(size.kinds[kind])).cuda()
        for name, p in layer.named_parameters():
            if p.dim() > 1 and not name.endswith("ape"): p.data = p.data.bfloat16()
        hidden = torch.randn(4096, 1, size.hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        def call():
            found = layer(hidden, cu, index_loss=kind == "csa")
            loss = found.output.float().square().mean() + (found.index_loss.mean() if found.index_loss is not None else 0)
            loss.backward()
        try: timed(f"{precision} {kind} forward and backward", call, precision == "highest")
        except Exception as e: print(kind, type(e), str(e)[:300])
from model.layers.deepseek_v4 import hyper
torch.set_float32_matmul_precision("highest")
h = hyper.HyperConnection(size.hidden, size.hyper.streams, size.hyper.sinkhorn_iterations).cuda()
x = torch.randn(4096, 1, size.hyper.streams, size.hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
def around():
    y, c = h(x)
    hyper.expand(y, x, c.post, c.comb).float().square().mean().backward()
timed("hyper-connection forward and backward", around, True)
