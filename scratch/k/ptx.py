import sys,re; sys.path[:0]=["/work/main","/work/main/tests/kit"]
import torch
from compiled import Launches
from model.layers.mamba3 import hopper, scan
TOKENS, H, G, R, N, P, A, T = 512, 128, 8, 4, 128, 64, 32, 16
half=lambda *s: torch.empty(1,TOKENS,*s,dtype=torch.bfloat16)
q, x, angles = half(R, G, N), half(H, P), torch.empty(1, TOKENS, H, A)
each, bias, table = torch.empty(1, H, TOKENS), torch.empty(H, R, N), torch.empty(H, R, P)
gl={n:Launches(getattr(hopper,n)) for n in ("mimo_states","mimo_backward","mimo_fold")}
for n,l in gl.items(): setattr(hopper,n,l)
given=scan.Given(q,q,bias,bias,angles,x,x,x,table,table,table,each,each,each,T)
grads=hopper.run_backward(given,hopper.run_states(given))
for n in ("mimo_backward","mimo_states"):
    print("==",n); last=None;c=0
    for l in gl[n].ptx[0].splitlines():
        m=re.search(r'(st\.shared|stmatrix|ld\.shared|ldmatrix|fence\.proxy\.async|bar\.sync|barrier|wgmma\.(mma|commit|wait|fence)|cp\.async\.bulk\.tensor\.\S*?(global|shared)|cp\.async\.bulk\.(commit|wait)\S*|mbarrier\.\S+|\$L__BB\S*:|bra)',l)
        if m:
            k=m.group(1)
            if k.startswith('wgmma.fence'): continue
            if k==last: c+=1
            else:
                if last: print(last, c if c>1 else '')
                last=k;c=1
    print(last,c)
