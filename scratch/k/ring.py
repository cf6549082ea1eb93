import sys,importlib.util; sys.path[:0]=["/work/main","/work/main/tests/kit","/work/main/scratch/k"]
import torch, sass, triton, compiled
from compiled import Launches, taken
def load(name,path):
    spec=importlib.util.spec_from_file_location(name,path); m=importlib.util.module_from_spec(spec); sys.modules[name]=m; spec.loader.exec_module(m); return m
import model.layers.mamba3
way=sys.argv[1]; H=int(sys.argv[2]) if len(sys.argv)>2 else 128
scan=load("model.layers.mamba3.scan",f"/work/main/scratch/k/{way}/scan.py"); hopper=load("model.layers.mamba3.hopper",f"/work/main/scratch/k/{way}/hopper.py")
for a in sys.argv[3:]: k,v=a.split("="); setattr(hopper,k,int(v))
real=triton.compile; n=[0]
def comp(*a,**k):
    m=real(*a,**k); n[0]+=1; sass.stats(m,f"#{n[0]}",f"/tmp/r{n[0]}.sass"); open(f"/tmp/r{n[0]}.ptx","w").write(m.asm["ptx"]); return m
compiled.triton.compile=comp
TOKENS, G, R, N, P, A, T = 512, 8, 4, 128, 64, 32, 16
half=lambda *s: torch.empty(1,TOKENS,*s,dtype=torch.bfloat16)
q, x, angles = half(R, G, N), half(H, P), torch.empty(1, TOKENS, H, A)
each, bias, table = torch.empty(1, H, TOKENS), torch.empty(H, R, N), torch.empty(H, R, P)
for m in ("mimo_states","mimo_backward","mimo_fold"): setattr(hopper,m,Launches(getattr(hopper,m)))
given=scan.Given(q,q,bias,bias,angles,x,x,x,table,table,table,each,each,each,T)
grads=hopper.run_backward(given,hopper.run_states(given))
hopper.run_fold(q,bias,angles,grads[2],q,torch.empty(TOKENS//32,H,R,N),angles,32)
