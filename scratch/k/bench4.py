"""One GPU, torch and Triton alone: main's main kernel of Mamba-3's backward beside the two sides of this tree; rope by its code.
From the checkout's root, this branch's model/ in it: python3 scratch/k/bench4.py"""
import importlib.util, sys, types, torch
def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path); m = importlib.util.module_from_spec(spec); sys.modules[name] = m; spec.loader.exec_module(m); return m
for n in ("model","model.layers","model.layers.mamba3","model.patched"): sys.modules[n] = types.ModuleType(n)
sys.modules["model.patched"].seams = None
K = load("model.layers.mamba3.kernels", "model/layers/mamba3/kernels.py"); sys.modules["model.layers.mamba3"].kernels = K
S = load("scan", "model/layers/mamba3/scan.py"); OLD = load("old", "scratch/k/old_kernels.py")
ROT = load("rotary", "model/layers/attention/rotary.py")
dev="cuda"; say=lambda *a: print(*a, flush=True)
def timed(f, n=9):
    f(); torch.cuda.synchronize(); t=[]
    for _ in range(n):
        a,b=(torch.cuda.Event(enable_timing=True) for _ in range(2)); a.record(); f(); b.record(); torch.cuda.synchronize(); t.append(a.elapsed_time(b))
    return round(sorted(t)[n//2],4)
say(torch.cuda.get_device_name())
x=torch.randn(12288,1,32,192,device=dev).bfloat16()[...,128:]; cos,sin=(torch.randn(12288,1,1,64,device=dev).bfloat16() for _ in range(2)); y=torch.randn(12288,1,32,64,device=dev).bfloat16()
for name,t in (("slice",x),("whole",y)):
    for paired in (True,False):
        for back in (False,True): say("rope",name,paired,back,timed(lambda: ROT._rotated(t,cos,sin,paired,back)))
B,L,R,G,H,N,P,A,T=3,4096,4,8,128,128,64,32,16
g=torch.Generator(device=dev).manual_seed(1); rn=lambda *s: torch.randn(*s,generator=g,device=dev); low=torch.bfloat16
a=S._summed(-rn(B,H,L).abs()*.05,T)
arg=dict(above=rn(B,L,H,P).to(low),q=rn(B,L,R,G,N).to(low),k=rn(B,L,R,G,N).to(low),x=rn(B,L,H,P).to(low),q_bias=1+.1*rn(H,R,N),k_bias=1+.1*rn(H,R,N),up=.25+.1*rn(H,R,P),down=.25+.1*rn(H,R,P),z=rn(B,L,H,P).to(low),gate=1+.1*rn(H,R,P),angles=rn(B,L,H,A),a=a,a_left=None,dt=rn(B,H,L).abs()*.1,trap=rn(B,H,L).to(low),skip=1+.1*rn(H),segments=None,chunk=T,divisor=4,dtype=low)
seen={}; all_calls={}
class Catch:
    def __init__(self,k): self.k=k
    def __getitem__(self,grid):
        def run(*a,**o): seen["call"]=(a,o); all_calls.setdefault(self.k.__name__,[]).append((grid,a,o)); return self.k[grid](*a,**o)
        return run
names=("mimo_states","mimo_carry","mimo_gates","mimo_fold","mimo_backward"); kept={n:getattr(K,n) for n in names}
for n in names: setattr(K,n,Catch(kept[n]))
whole=S.mimo_backward(*arg.values()); torch.cuda.synchronize()
for n in names: setattr(K,n,kept[n])
real=kept["mimo_backward"]
a_,o_=all_calls["mimo_backward"][0][1:]; sizes={n:o_[n] for n in "S H R N P T".split()}
new=list(a_); outs=new[9:]; keep=[t.clone() for t in outs]
old_outs=[torch.empty_like(t) for t in outs]; old_outs[4]=torch.empty_like(outs[4][0])
old=lambda: OLD.mimo_backward[H,L//T,B](*new[:9],*old_outs,num_warps=4,**sizes)
say("old", timed(old))
pairs=[*zip(keep,old_outs)]; pairs[4]=(keep[4].sum(0),old_outs[4])
say("differences", ["%.1e"%((p.float()-q.float()).norm()/q.float().norm()).item() for p,q in pairs])
for opt in ({"num_warps":4,"maxnreg":168},{"num_warps":4},{"num_warps":4,"maxnreg":160},{"num_warps":4,"maxnreg":128},{"num_warps":8},{"num_warps":8,"maxnreg":128}):
    try: say("sides",opt,timed(lambda: K.mimo_backward[2*H,L//T,B](*new,**opt,**sizes)))
    except Exception as e: say("sides",opt,"failed",str(e)[:120])
say("old again", timed(old)); say("whole backward", timed(lambda: S.mimo_backward(*arg.values()),5))

for n in names[:4]: say(n, timed(lambda: kept[n][all_calls[n][0][0]](*all_calls[n][0][1],**all_calls[n][0][2])))
grid,a_,o_=all_calls["mimo_fold"][0]
for ranks in (4,2,1):
    big=torch.empty(R//ranks,B,L,H,A,device=dev); args=[*a_]; args[6]=big
    for more in ({},{"STAGES":2},{"STAGES":4},{"maxnreg":128},{"maxnreg":96}):
        try: say("fold",ranks,more,timed(lambda: kept["mimo_fold"][grid[0],grid[1],R//ranks](*args,**{**o_,"RANKS":ranks,**more})))
        except Exception as e: say("fold",ranks,more,"failed",str(e)[:100])
d=torch.empty(2,2,B,L,H,A,device=dev); say("sum of four", timed(lambda: d.sum((0,1))), "of two", timed(lambda: d[0].sum(0)))
grid,a_,o_=all_calls["mimo_gates"][0]
for heads in (1,2,4):
    for stages in (2,3,4): say("gates",heads,stages,timed(lambda: kept["mimo_gates"][H//heads,grid[1]](*a_,**{**o_,"HEADS":heads,"STAGES":stages})))
grid,a_,o_=all_calls["mimo_states"][0]
for more in ({"num_warps":8,"maxnreg":128},{"num_warps":8,"maxnreg":104},{"num_warps":8,"maxnreg":80},{"num_warps":4,"maxnreg":168}): say("states",more,timed(lambda: kept["mimo_states"][grid](*a_,**{**o_,**more})))
docs=types.ModuleType("model.layers.common"); docs.documents=types.SimpleNamespace(check=lambda *a: None); sys.modules["model.layers.common"]=docs
def m2rnn(kernels, module, name):
    pack=types.ModuleType("model.layers.m2rnn"); sys.modules["model.layers.m2rnn"]=pack
    pack.kernels=load("model.layers.m2rnn.kernels",kernels); return load(name,module)
gen=torch.Generator(device=dev).manual_seed(0); rm=lambda *s: torch.randn(*s,generator=gen,device=dev)
d=dict(q=rm(12288,64).bfloat16(),k=(rm(12288,64)/8).bfloat16(),v=rm(12288,51,16).bfloat16(),log_f=-rm(12288,51).abs()*.1,W=(torch.eye(16,device=dev)+.05*rm(51,16,16)).bfloat16())
d={n:t.requires_grad_() for n,t in d.items()}; cu=torch.tensor([0,4096,8192,12288],dtype=torch.int32,device=dev); up=torch.randn(12288,51,16,device=dev).bfloat16(); got={}
for name,args in (("old m2rnn",("scratch/k/old_m2rnn_kernels.py","scratch/k/old_m2rnn.py")),("new m2rnn",("model/layers/m2rnn/kernels.py","model/layers/m2rnn/triton.py"))):
    m=m2rnn(*args,name.replace(" ","_")); out=m.m2rnn_triton(**d,cu_seqlens=cu); f=lambda: torch.autograd.grad(out,list(d.values()),up,retain_graph=True)
    got[name]=f(); say(name,timed(f,5))
say("m2rnn differences",["%.1e"%((p.float()-q.float()).norm()/q.float().norm()).item() for p,q in zip(*got.values())])
