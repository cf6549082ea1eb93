import sys,importlib.util; sys.path[:0]=["/work/main","/work/main/tests/kit","/work/main/scratch/k"]
import torch, sass, triton, compiled
from compiled import Launches
spec=importlib.util.spec_from_file_location("fw","/work/main/scratch/k/ws/hopper.py"); hopper=importlib.util.module_from_spec(spec); sys.modules["fw"]=hopper; spec.loader.exec_module(hopper)
real=triton.compile
def comp(*a,**k):
    m=real(*a,**k); sass.stats(m,"fwd","/tmp/f.sass"); open("/tmp/f.ptx","w").write(m.asm["ptx"]); return m
compiled.triton.compile=comp
TOKENS, H, G, R, N, P, A, T = 512, 128, 8, 4, 128, 64, 32, 16
half=lambda *s: torch.empty(1,TOKENS,*s,dtype=torch.bfloat16)
q, x, angles = half(R, G, N), half(H, P), torch.empty(1, TOKENS, H, A)
each, bias, table = torch.empty(1, H, TOKENS), torch.empty(H, R, N), torch.empty(H, R, P)
hopper.mimo_forward=Launches(hopper.mimo_forward)

for keep,o in ((False,{}),(True,{})):
    print(keep); hopper.run_forward(q,q,x,bias,bias,table,table,x,torch.empty(H),table,angles,each,each,each,T,keep=keep,**o)
    print(open("/tmp/f.ptx").read().count("bar.sync"))
