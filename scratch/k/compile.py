import sys, torch; sys.path.insert(0,'/work/main'); sys.path.insert(0,'/work/main/scratch/k'); sys.path.insert(0,'/tmp')
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature
from triton.experimental.gluon._runtime import GluonASTSource
import hopper, sass
B,L,R,H,N,P,T=1,64,4,8,128,64,16
low=torch.bfloat16
w=lambda: torch.empty(B,L,R,H,N,dtype=low); n=lambda: torch.empty(B,L,R,H,P,dtype=low); s=lambda: torch.empty(B,L//32,H,N,P,dtype=low); f=lambda: torch.empty(B,H,L)
d=hopper.descriptors(w(),w(),n(),n(),s(),s(),n(),n(),w(),w(),T*R)
args=[*d,f(),f(),f(),f(),f(),f()]
def comp(kernel,args,**o):
    target=GPUTarget("cuda",90,32); backend=make_backend(target)
    bound,spec,rest=create_function_from_signature(kernel.signature,kernel.params,backend)(*args,**o)
    chosen,signature,constants,attrs=kernel._pack_args(backend,rest,bound,spec,rest)
    return triton.compile(GluonASTSource(kernel,signature,constants,attrs),target=target,options=chosen.__dict__)

if len(sys.argv)>1 and sys.argv[1]=='main':
  for o in ({},{"maxnreg":168}):
    sass.stats(comp(hopper.hopper_backward,args,S=4096,H=128,R=R,N=N,P=P,T=T,num_warps=4,**o),str(o),'/tmp/gluon.sass')
G,A=8,32
g=lambda: torch.empty(B,L,R,G,N,dtype=low); xx=lambda: torch.empty(B,L,H,P,dtype=low); tab=lambda n: torch.empty(H,R,n)

if len(sys.argv)>1 and sys.argv[1]=='fold':
  for cols in (16,8):
   for o in ({},{"maxnreg":168},{"maxnreg":128}):
    m=comp(hopper.hopper_fold,[g(),tab(N),torch.empty(B,L,H,A),w(),g(),torch.empty(B*L//32,H,R,N),torch.empty(B,L,H,A)],H=128,G=G,R=R,N=N,A=A,TOKENS=32,COLUMNS=cols,num_warps=1,**o)
    sass.stats(m,f'fold {cols} {o}','/tmp/gfold.sass')
  sys.exit()
for fw in (True,False):
  for o in ({"WARPS":4},{"WARPS":4,"maxnreg":168},{"WARPS":8},{"WARPS":8,"maxnreg":128},{"WARPS":8,"maxnreg":80}):
    sd=hopper.state_descriptors(w(),n(),s(),T*R)
    m=comp(hopper.hopper_states,[g(),tab(N),torch.empty(B,L,H,A),xx(),xx(),tab(P),tab(P),f(),f(),*sd],S=4096,H=128,G=G,R=R,N=N,P=P,A=A,T=T,FORWARD=fw,num_warps=o['WARPS'],**o)
    sass.stats(m,f'{fw} {o}','/tmp/gstates.sass')
