"""Mamba-3's backward by blocks with the kernels of k_base.py and those here: gradients against fp64 and each other, and
each kernel's milliseconds, medians over rounds that take turns. On a GPU: PYTHONPATH=. python3 scratch/bench_blocks.py"""
import collections, importlib.util, sys
sys.path.insert(0, "."); sys.path.insert(0, "scratch")
import torch
from model.layers.mamba3 import kernels, scan
from model.layers.mamba3.reference import mamba3_mimo_reference
spec = importlib.util.spec_from_file_location("k_base", "scratch/k_base.py"); base = importlib.util.module_from_spec(spec); spec.loader.exec_module(base)
dev, C = "cuda", 16
def make(B, S, R, G, H, N, P, DIV, low=torch.bfloat16):
    g = torch.Generator(device=dev).manual_seed(1); rn = lambda *s: torch.randn(*s, generator=g, device=dev)
    d = dict(Q=rn(B,S,R,G,N),K=rn(B,S,R,G,N),V=rn(B,S,H,P),Z=rn(B,S,H,P),ADT=-rn(B,H,S).abs()*.05,DT=rn(B,H,S).abs()*.1,Trap=rn(B,H,S),Q_bias=1+.1*rn(H,R,N),K_bias=1+.1*rn(H,R,N),MIMO_V=.25+.1*rn(H,R,P),MIMO_Z=1+.1*rn(H,R,P),MIMO_Out=.25+.1*rn(H,R,P),Angles=rn(B,S,H,N//DIV),D=1+.1*rn(H))
    d["ADT"][:,:,0] = -40; d["ADT"][:,:,77] = -40
    for n in "QKVZ": d[n] = d[n].to(low)
    return d
def prepared(d):
    theta = (torch.pi*d["Angles"].tanh()*d["DT"].transpose(1,2).unsqueeze(-1)).cumsum(1)
    return theta, d["ADT"].detach().unflatten(2,(-1,C)).cumsum(-1).flatten(2).contiguous()
def back(kind, d, theta, a, above):
    module, kernels_of = KINDS[kind]; module.kernels = kernels_of
    with torch.no_grad(): return module.mimo_backward(above,d["Q"],d["K"],d["V"],d["Q_bias"],d["K_bias"],d["MIMO_V"],d["MIMO_Out"],d["Z"],d["MIMO_Z"],theta,a,None,d["DT"],d["Trap"],d["D"],None,C,4,torch.bfloat16)
names = "Q K V ADT DT Trap Q_bias K_bias MIMO_V MIMO_Z MIMO_Out theta D Z".split()
err = lambda a, b: ((a.double()-b.double()).norm()/b.double().norm()).item()
spec = importlib.util.spec_from_file_location("scan_ahead", "scratch/scan_ahead.py"); before = importlib.util.module_from_spec(spec); spec.loader.exec_module(before)
before_kernels = importlib.util.spec_from_file_location("k_ahead", "scratch/k_ahead.py"); ahead = importlib.util.module_from_spec(before_kernels); before_kernels.loader.exec_module(ahead)
KINDS = {"base": (before, base), "ahead": (before, ahead), "here": (scan, kernels)}
d = {n: t.requires_grad_() for n, t in make(2,256,4,2,8,128,64,4).items()}
f = {n: t.detach().double().requires_grad_() for n, t in d.items()}
want = mamba3_mimo_reference(**f, chunk_size=16, rotary_dim_divisor=4, dtype=torch.float64)
above = torch.randn(want.shape, device=dev).bfloat16()
gw = dict(zip(f, torch.autograd.grad(want, list(f.values()), above.double())))
theta, a = prepared(d)
for kind in KINDS:
    got = dict(zip(names, back(kind, d, theta.detach(), a, above)))
    dang, ddt = torch.autograd.grad(theta, (d["Angles"], d["DT"]), got.pop("theta"), retain_graph=True); got["Angles"] = dang; got["DT"] = got["DT"]+ddt
    print("check", kind, *("%s %.1e" % (n, err(g, gw[n])) for n, g in got.items()), flush=True)
d = make(3,4096,4,8,128,128,64,4); theta, a = prepared(d); above = torch.randn_like(d["V"])
outs, times = {}, {k: collections.defaultdict(list) for k in KINDS}
for kind in KINDS:
    outs[kind] = back(kind, d, theta, a, above); torch.cuda.synchronize()
for kind in ("ahead", "here"): print(kind, "against base", *("%s %.1e" % (n, err(x, y)) for n, x, y in zip(names, outs[kind], outs["base"])), flush=True)
del outs
for _ in range(7):
    for kind in KINDS:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
            back(kind, d, theta, a, above); torch.cuda.synchronize()
        for e in p.key_averages():
            if e.self_device_time_total > 20: times[kind][e.key[:60]].append(e.self_device_time_total/1e3)
for kind in KINDS:
    med = {k: sorted(v)[len(v)//2] for k, v in times[kind].items()}
    print(kind, "whole %.2f ms" % sum(med.values()), {k: round(v, 3) for k, v in sorted(med.items(), key=lambda x: -x[1])}, flush=True)
print(torch.cuda.get_device_name())

# forward: ours and TileLang's, the same inputs; then both whole by autograd
from model.layers.mamba3 import upstream
scan.kernels = kernels
f = make(2,256,4,2,8,128,64,4); want = mamba3_mimo_reference(**{n: t.double() for n, t in f.items()}, chunk_size=16, rotary_dim_divisor=4, dtype=torch.float64)
theirs = getattr(upstream.import_mamba3(), upstream.KERNEL); ours = scan.by_blocks(theirs)
names_of = dict(chunk_size=16, rotary_dim_divisor=4, dtype=torch.bfloat16, return_state=False, cu_seqlens=None)
for name, run in {"theirs": theirs, "ours": ours}.items():
    with torch.no_grad(): print("forward check", name, "%.1e" % err(run(**f, **names_of), want), flush=True)
d = {n: t.requires_grad_() for n, t in make(3,4096,4,8,128,128,64,4).items()}; above = torch.randn_like(d["V"])
out = {n: run(**d, **names_of) for n, run in {"theirs": theirs, "ours": ours}.items()}
print("forward ours against theirs %.1e" % err(out["ours"], out["theirs"])); del out
for name, run in {"theirs": theirs, "ours": ours, "theirs again": theirs, "ours again": ours}.items():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
        for _ in range(5):
            with torch.no_grad(): run(**d, **names_of)
        torch.cuda.synchronize()
    print("forward", name, {e.key[:60]: round(e.self_device_time_total/5e3, 3) for e in sorted(p.key_averages(), key=lambda e: -e.self_device_time_total)[:6]}, flush=True)
for warps in (4, 8):
    for regs in (None, 168, 128):
        scan.OPTIONS["mimo_forward"] = {"num_warps": warps} | ({"maxnreg": regs} if regs else {})
        try:
            with torch.no_grad(): ours(**d, **names_of)
            torch.cuda.synchronize(); a_, b_ = (torch.cuda.Event(enable_timing=True) for _ in range(2)); a_.record()
            for _ in range(5):
                with torch.no_grad(): ours(**d, **names_of)
            b_.record(); torch.cuda.synchronize(); print("forward options", warps, regs, "%.3f ms with what is around" % (a_.elapsed_time(b_)/5), flush=True)
        except Exception as error: print("forward options", warps, regs, type(error), str(error)[:200], flush=True)
