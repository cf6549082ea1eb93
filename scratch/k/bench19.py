"""Folds fo/fold_X.py by turns: python3 scratch/k/bench19.py m d2 d4 d8"""
import sys
src=open("scratch/k/bench18.py").read(); names=sys.argv[1:]
exec(src[:src.index("def main(v)")])
def load(v):
    spec=importlib.util.spec_from_file_location("fold_"+v,f"scratch/k/fo/fold_{v}.py"); m=importlib.util.module_from_spec(spec); sys.modules["fold_"+v]=m; spec.loader.exec_module(m)
    return m.run_fold
runs=[(v,load(v)) for v in names]
for shape in ((3,4096,128,8),(4,4096,112,8)):
    G=given(*shape); rows,length,heads,groups=shape
    w=tuple(random(rows,length,4,heads,128,seed=s) for s in (20,21)); want=None
    for turn in range(3):
        for v,f in runs:
            T=32; o=torch.empty_like(G.q),torch.empty_like(G.k); b=torch.empty(2,rows*length//T,*G.q_bias.shape,device="cuda")
            try:
                out=[*o,b]; a=f(G,w,o,b,T); out.append(a); torch.cuda.synchronize()
            except Exception as e: say(v,type(e).__name__,str(e)[:300]); continue
            if want is None: want=[t.clone() for t in out]
            say(shape,"fold",v,[timed(lambda: f(G,w,o,b,T)) for _ in range(2)],["%.0e"%((p.double()-r.double()).norm()/r.double().norm()).item() for p,r in zip(out,want)] if turn==0 else "")
