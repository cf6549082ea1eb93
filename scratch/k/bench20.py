"""Whole trees scratch/t/X/layers/mamba3 by turns: python3 scratch/k/bench20.py a b c"""
import importlib, sys, types, torch
from torch.profiler import profile, ProfilerActivity
say = lambda *a: print(*a, flush=True)
class Tree: pass
def load(t):
    for n in [n for n in sys.modules if n=="model" or n.startswith("model.")]: del sys.modules[n]
    for n,p in (("model","model"),("model.layers","x/layers"),("model.layers.mamba3","x/layers/mamba3")):
        sys.modules[n] = types.ModuleType(n); sys.modules[n].__path__ = [f"scratch/t/{t}"+p[1:] if p!="model" else f"scratch/t/{t}"]
    sys.modules["model.patched"] = types.ModuleType("model.patched"); sys.modules["model.patched"].seams = None
    o=Tree(); o.name=t; o.S=importlib.import_module("model.layers.mamba3.scan"); o.L=importlib.import_module("model.layers.mamba3.hopper.launches").LAUNCHES
    o.F=importlib.import_module("model.layers.mamba3.hopper.forward"); o.ST=importlib.import_module("model.layers.mamba3.hopper.states"); return o
src=open("scratch/k/bench14.py").read()
exec(src[src.index("def timed"):src.index("say(torch.cuda")]); 
def random(*shape, seed): return torch.randn(*shape, generator=torch.Generator(device="cuda").manual_seed(seed), device="cuda").bfloat16()
S=None
exec(src[src.index("def given"):src.index("def fwd")])
def err(p,q): return ((p.double()-q.double()).norm()/q.double().norm()).item()
trees=[load(t) for t in sys.argv[1:]]; S=trees[0].S
say(torch.cuda.get_device_name())
for shape in ((3,320,128,8),(1,352,10,2)):
    gi=given(*shape); want=trees[0].S.mimo_backward(*gi,by=trees[0].S.TRITON)
    for t in trees: say(shape,t.name,["%.1e"%err(p,w) for p,w in zip(t.S.mimo_backward(*gi,by=t.L),want)])
for rows,heads in ((3,128),(4,112)):
    gi=given(rows,4096,heads,8)
    for turn in range(2):
        for t in trees:
            w=timed(lambda: t.S.mimo_backward(*gi,by=t.L),5)
            with profile(activities=[ProfilerActivity.CUDA]) as p:
                for _ in range(3): t.S.mimo_backward(*gi,by=t.L)
                torch.cuda.synchronize()
            say(rows,heads,t.name,"backward",w,[(e.key[:14],round(e.device_time_total/1e3/3,3)) for e in sorted(p.key_averages(),key=lambda e:-e.device_time_total)[:5]])
