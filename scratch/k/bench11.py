"""Variants of the sums over heads and of the main kernel's end. From the root: bash scratch/k/bench11.sh"""
import importlib, importlib.util, sys, types, torch
sys.path.insert(0,"scratch/k/fo")
for n in ("model","model.layers","model.layers.mamba3"):
    sys.modules[n] = types.ModuleType(n); sys.modules[n].__path__ = [n.replace(".", "/")]
sys.modules["model.patched"] = types.ModuleType("model.patched"); sys.modules["model.patched"].seams = None
S = importlib.import_module("model.layers.mamba3.scan"); L = importlib.import_module("model.layers.mamba3.hopper.launches").LAUNCHES
import fold2
say = lambda *a: print(*a, flush=True)
def timed(f, n=9):
    f(); torch.cuda.synchronize(); t=[]
    for _ in range(n):
        a,b=(torch.cuda.Event(enable_timing=True) for _ in range(2)); a.record(); f(); b.record(); torch.cuda.synchronize(); t.append(a.elapsed_time(b))
    return round(sorted(t)[n//2],4)
only=int(sys.argv[1]) if len(sys.argv)>1 else None
B=1 if only is not None else 3
def random(*shape, seed): return torch.randn(*shape, generator=torch.Generator(device="cuda").manual_seed(seed), device="cuda").bfloat16()
rank,state,channels,chunk,rows,length,heads,groups=4,128,64,16,B,4096,128,8
table=lambda *s,seed: random(heads,rank,*s,seed=seed).float()/10+1
q,k=[random(rows,length,rank,groups,state,seed=s) for s in (0,1)]
x,z,above=(random(rows,length,heads,channels,seed=s) for s in (2,3,4))
decay,dt=(random(rows,heads,length,seed=s).float().abs()/10 for s in (5,6))
up,down,gate=(table(channels,seed=s) for s in (7,8,9))
qb,kb=table(state,seed=10),table(state,seed=11); ang=random(rows,length,heads,32,seed=12).float()
a=S.decay_sums(-decay,chunk)[0]; trap=random(rows,heads,length,seed=13)
own,later=S.weights(dt,trap.float()); G=S.Given(q,k,qb,kb,ang,x,z,above,up,gate,down,a,own,later,16)
def main(v):
    spec=importlib.util.spec_from_file_location("back_"+v,f"scratch/k/fo/back_{v}.py"); m=importlib.util.module_from_spec(spec); sys.modules["back_"+v]=m; spec.loader.exec_module(m)
    return m.run_backward
TOK=32
parts_=rows*length//TOK
w=[random(rows,length,rank,heads,state,seed=s) for s in (20,21)]
def new(): return torch.empty_like(q),torch.empty(parts_,*qb.shape,device="cuda"),torch.empty_like(ang)
sizes=dict(H=heads,G=groups,R=rank,N=state,A=32,TOKENS=TOK)
def one(cfg,first,outs,t=0,**o):
    c,nw,wh,wc=cfg
    fold2.fold_one[groups*(32//c),parts_](q,qb,ang,w[t],*outs,**sizes,FIRST=first,COLUMNS=c,HEADS=16,WH=wh,WC=wc,num_warps=nw,**o)
def both(cfg,o1,o2,**o):
    c,nw,wh,wc=cfg
    fold2.fold_both[groups*(32//c),parts_](q,q,qb,qb,ang,w[0],w[1],o1[0],o2[0],o1[1],o2[1],o1[2],**sizes,COLUMNS=c,HEADS=16,WH=wh,WC=wc,num_warps=nw,**o)
ref=new(); S_=importlib.import_module("model.layers.mamba3.hopper.fold")
jobs=[]
for v in "obef": jobs.append(("main "+v,lambda v=v: main(v)))
for cfg in ((16,1,1,1),(16,2,2,1),(16,2,1,2),(32,2,1,2),(32,4,1,4)):
    for first in (0,32):
        for o in ({}, {"maxnreg":128}) if cfg in ((16,2,1,2),(32,4,1,4)) and first==0 else ({},):
            jobs.append((f"one {cfg} {first} {o}",lambda cfg=cfg,first=first,o=o: ("one",cfg,first,o)))
for cfg in ((16,2,2,1),(16,2,1,2),(32,4,1,4)):
    for o in ({},{"maxnreg":168}): jobs.append((f"both {cfg} {o}",lambda cfg=cfg,o=o: ("both",cfg,o)))
if only is not None:
    if only>=len(jobs): sys.exit()
    jobs=[jobs[only]]
else:
    say(torch.cuda.get_device_name())
    S_.run_fold(q,qb,ang,w[0],*ref,TOK); refk=new(); S_.run_fold(q,qb,ang,w[1],*refk,TOK)
    say("fold as it is, q alone",timed(lambda: S_.run_fold(q,qb,ang,w[0],*ref,TOK)), "d_angles.sum", timed(lambda: torch.stack((ref[2],ref[2])) ))
made=L.states(G); want=None
for name,job in jobs:
    try:
        got=job()
        if name.startswith("main"):
            out=got(G,made)
            if want is None: want=out
            errs=["%.0e"%((p.double()-r.double()).norm()/r.double().norm()).item() for p,r in zip(out,want)] if only is None else 0
            say(name,timed(lambda: got(G,made)),timed(lambda: got(G,made)),errs); continue
        o1,o2=new(),new()
        if got[0]=="one":
            _,cfg,first,o=got; t=timed(lambda: one(cfg,first,o1,**o))
            if only is None:
                s=slice(first,first+32); s2=slice(64+first,96+first)
                ok=[torch.equal(p[...,s],r[...,s]) and torch.equal(p[...,s2],r[...,s2]) for p,r in zip(o1[:2],ref[:2])]
                e=[((p[...,s].double()-r[...,s].double()).abs().max()).item() for p,r in zip(o1[:2],ref[:2])]
                if first==0: e.append((o1[2]-ref[2]).abs().max().item())
                say(name,t,e)
        else:
            _,cfg,o=got; t=timed(lambda: both(cfg,o1,o2,**o))
            if only is None:
                s=slice(0,32)
                e=[((p[...,s].double()-r[...,s].double()).abs().max()).item() for p,r in ((o1[0],ref[0]),(o1[1],ref[1]),(o2[0],refk[0]),(o2[1],refk[1]))]+[(o1[2]-ref[2]-refk[2]).abs().max().item()]
                say(name,t,e)
    except Exception as e: say(name,type(e).__name__,str(e)[:150])
