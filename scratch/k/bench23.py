"""Trees scratch/t/X/layers/mamba3: `check a b` errors at small shapes; `time a b` by turns, first and last with states kept, too."""
import sys
how=sys.argv[1]; sys.argv[1:]=sys.argv[2:]
src=open("scratch/k/bench20.py").read()
exec(src[:src.index("for shape in ((3,320")])

def fwd(t,g):
    above,q,k,x,qb,kb,up,down,z,gate,ang,a,_,dt,trap,skip,_,chunk,*_2=g
    return t.F.run_forward(q,k,x,qb,kb,up,down,z,skip,gate,ang,a,None,dt,trap,None,chunk_size=chunk,rotary_dim_divisor=4,dtype=torch.bfloat16)[0]
def prof(f):
    f(); torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(5): f()
        torch.cuda.synchronize()
    return [(e.key[:14],round(e.device_time_total/1e3/5,3)) for e in sorted(p.key_averages(),key=lambda e:-e.device_time_total)[:6]]
def kept(t,gi): t.S.KEPT.set([]); fwd(t,gi)
if how=="check":
    for t in trees:
        for shape in ((3,320,128,8),(1,352,10,2),(2,1024,112,8)):
            gi=given(*shape); want=trees[0].S.mimo_backward(*gi,by=trees[0].S.TRITON)
            say(shape,t.name,["%.1e"%err(p,w) for p,w in zip(t.S.mimo_backward(*gi,by=t.L),want)])

        say(t.name,"checked")
else:
    def kernels(t,gi):
        def run(): fwd(t,gi); t.S.mimo_backward(*gi,by=t.L)
        run(); torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as p:
            for _ in range(6): run()
            torch.cuda.synchronize()
        d={e.key[5:13]:round(e.device_time_total/1e3/6,3) for e in p.key_averages() if e.key.startswith("mimo_")}
        d={k:v for k,v in sorted(d.items()) if v>.05}; return round(sum(d.values()),3),d
    for rows,heads in ((3,128),(4,112)):
        gi=given(rows,4096,heads,8)
        for turn in range(3 if heads==128 else 1):
            for t in trees:
                say(rows,heads,t.name,*kernels(t,gi))
                if t.name in ("e",) and turn<2:
                    ST=t.ST
                    for st,regs in ((4,(128,104,56)),(4,(144,72,56)),(3,(144,72,56)),(3,(160,64,48))):
                        try: ST.STAGES,ST.REGISTERS=st,regs; say("   states",st,regs,*kernels(t,gi))
                        except Exception as x: say("   states",st,regs,type(x).__name__,str(x)[:80])
                    ST.STAGES,ST.REGISTERS=3,(128,104,56)
