"""One GPU, torch and Triton alone: scratch/k/hopper.py (Gluon) beside Triton's kernels of Mamba-3's backward pass.
From the checkout's root: timeout 100 python3 scratch/k/bench5.py"""
import importlib.util, sys, types, torch
def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path); m = importlib.util.module_from_spec(spec); sys.modules[name] = m; spec.loader.exec_module(m); return m
for n in ("model","model.layers","model.layers.mamba3","model.patched"): sys.modules[n] = types.ModuleType(n)
sys.modules["model.patched"].seams = None
K = load("model.layers.mamba3.kernels", "model/layers/mamba3/kernels.py"); sys.modules["model.layers.mamba3"].kernels = K
S = load("scan", "model/layers/mamba3/scan.py"); G_ = load("hopper", "scratch/k/hopper.py")
dev="cuda"; say=lambda *a: print(*a, flush=True)
def timed(f, n=9):
    f(); torch.cuda.synchronize(); t=[]
    for _ in range(n):
        a,b=(torch.cuda.Event(enable_timing=True) for _ in range(2)); a.record(); f(); b.record(); torch.cuda.synchronize(); t.append(a.elapsed_time(b))
    return round(sorted(t)[n//2],4)
def off(pairs): return ["%.1e"%((p.float()-q.float()).norm()/q.float().norm()).item() for p,q in pairs]
def tried(what, f):
    try: return f()
    except Exception as e: say(what,"failed",type(e).__name__,str(e)[:300]); torch.cuda.synchronize()
say(torch.cuda.get_device_name())
B,L,R,G,H,N,P,A,T=3,4096,4,8,128,128,64,32,16
g=torch.Generator(device=dev).manual_seed(1); rn=lambda *s: torch.randn(*s,generator=g,device=dev); low=torch.bfloat16
a=S._summed(-rn(B,H,L).abs()*.05,T)
arg=dict(above=rn(B,L,H,P).to(low),q=rn(B,L,R,G,N).to(low),k=rn(B,L,R,G,N).to(low),x=rn(B,L,H,P).to(low),q_bias=1+.1*rn(H,R,N),k_bias=1+.1*rn(H,R,N),up=.25+.1*rn(H,R,P),down=.25+.1*rn(H,R,P),z=rn(B,L,H,P).to(low),gate=1+.1*rn(H,R,P),angles=rn(B,L,H,A),a=a,a_left=None,dt=rn(B,H,L).abs()*.1,trap=rn(B,H,L).to(low),skip=1+.1*rn(H),segments=None,chunk=T,divisor=4,dtype=low)
calls={}
class Catch:
    def __init__(self,k): self.k=k
    def __getitem__(self,grid):
        def run(*a,**o): calls.setdefault(self.k.__name__,[]).append((grid,a,o)); return self.k[grid](*a,**o)
        return run
names=("mimo_states","mimo_carry","mimo_gates","mimo_fold","mimo_backward"); kept={n:getattr(K,n) for n in names}
for n in names: setattr(K,n,Catch(kept[n]))
S.mimo_backward(*arg.values()); torch.cuda.synchronize()
for n in names: setattr(K,n,kept[n])
for n in names: grid,a_,o_=calls[n][0]; n!="mimo_carry" and say(n, timed(lambda: kept[n][grid](*a_,**o_)))
sizes=dict(S=L,H=H,R=R,N=N,P=P,T=T)
# states: both sides
grid,a_,o_=calls["mimo_states"][0]; kept["mimo_states"][grid](*a_,**o_); want=[t.clone() for t in a_[13:19]]
tq,tk,v,dy,st,sl=[torch.empty_like(t) for t in want]
q,k,qb,kb,ang,x,z,above,up,gate,down,aa,later=a_[:13]
dk_,dq_=G_.state_descriptors(tk,v,st,T*R),G_.state_descriptors(tq,dy,sl,T*R)
for warps,more in ((8,{}),(8,{"maxnreg":128}),(8,{"maxnreg":80}),(4,{}),(4,{"maxnreg":168})):
    def both():
        for fw,args in ((True,(k,kb,ang,x,z,up,gate)),(False,(q,qb,ang,above,z,down,gate))):
            G_.hopper_states[H,L//(2*T),B](*args,aa,later,*(dk_ if fw else dq_),**sizes,G=G,A=A,FORWARD=fw,WARPS=warps,num_warps=warps,**more)
    t=tried(("states",warps,more),lambda: timed(both))
    if t: say("hopper states",warps,more,t,off(zip((tq,tk,v,dy,st,sl),want)))
# main
grid,a_,o_=calls["mimo_backward"][0]; kept["mimo_backward"][grid](*a_,**o_); want=[t.clone() for t in a_[9:16]]
outs=[torch.empty_like(t) for t in want]
d=G_.descriptors(*a_[:4],*a_[7:9],*outs[:4],T*R)
run=lambda **more: G_.hopper_backward[H,L//T,B](*d,*a_[4:7],outs[4],outs[5],outs[6],**sizes,num_warps=4,**more)
for more in ({},{"maxnreg":168}):
    t=tried(("main",more),lambda: timed(lambda: run(**more)))
    if t: say("hopper main",more,t,off(zip(outs,want)))
# sums over heads
grid,a_,o_=calls["mimo_fold"][0]; kept["mimo_fold"][grid](*a_,**o_); want=[t.clone() for t in a_[4:7]]; outs=[torch.empty_like(t) for t in want]
for cols,more in ((16,{}),(16,{"maxnreg":168}),(8,{}),(8,{"maxnreg":168})):
    f=lambda: G_.hopper_fold[G*(N//2//cols),B*L//32](*a_[:4],*outs,H=H,G=G,R=R,N=N,A=A,TOKENS=32,COLUMNS=cols,num_warps=1,**more)
    t=tried(("fold",cols,more),lambda: timed(f))
    if t: say("hopper fold",cols,more,t,off(zip(outs,want)))
say("triton main again",timed(lambda: kept["mimo_backward"][grid](*a_,**o_)))
