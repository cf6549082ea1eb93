"""mamba-ssm's MIMO forward kernel by threads and stages, one shape (pack 17): fwd.py THREADS STAGES compiles, fwd.py all times.
In /tmp/wt with its PYTHONPATH, as next.sh's runs: stage fwd."""
import os, sys, torch
os.environ["MAMBA3_MIMO_SPECIALIZE"] = "1"
from model.patched import overlay, stacks
from reproducers.upstream.store import Store
of = stacks.named(stacks.DEFAULT)
overlay.activate(overlay.build(Store(), overlay.chosen("all", stack=of), "cuda", of))
from mamba_ssm.ops.tilelang.mamba3.mamba3_mimo_fwd import mamba_mimo_forward
B,S,R,G,N,H,P,T=3,4096,4,8,128,128,64,16
g=torch.Generator(device="cuda").manual_seed(1); rn=lambda *s: torch.randn(*s,generator=g,device="cuda"); low=torch.bfloat16
a=-(rn(B,H,S).abs()*.05).view(B,H,S//T,T); cs=a.cumsum(-1); seg=(cs[...,:,None]-cs[...,None,:]).contiguous()
given=(rn(B,S,R,G,N).to(low),rn(B,S,R,G,N).to(low),rn(B,S,H,P).to(low),rn(H,R,N),rn(H,R,N),rn(H,R,P),rn(H,R,P),rn(B,S,H,P).to(low),rn(H),rn(H,R,P),
       rn(B,S,H,N//4),cs.reshape(B,H,S),(cs[...,-1:]-cs).reshape(B,H,S).contiguous(),rn(B,H,S).abs()*.1,rn(B,H,S).to(low),seg,T,4,low)
def run(t,s): return mamba_mimo_forward(*given,threads=t,num_stages=s)[0]
def timed(f,n=9):
    f(); torch.cuda.synchronize(); m=[]
    for _ in range(n):
        x,y=(torch.cuda.Event(enable_timing=True) for _ in range(2)); x.record(); f(); y.record(); torch.cuda.synchronize(); m.append(x.elapsed_time(y))
    return round(sorted(m)[n//2],4)
if sys.argv[1]=="all":
    want=run(128,0).float()
    for t,s in ((128,0),(128,1),(128,2),(256,0),(256,1),(256,2),(128,0)):
        try: print(t,s,timed(lambda: run(t,s)),((run(t,s).float()-want).norm()/want.norm()).item(),flush=True)
        except Exception as e: print(t,s,type(e).__name__,str(e)[-200:],flush=True)
else:
    run(int(sys.argv[1]),int(sys.argv[2])); torch.cuda.synchronize(); print("compiled",sys.argv[1:],flush=True)
