"""Whole trees scratch/t/X/layers/mamba3 by turns, forward and backward; of the last one with states kept, too: python3 scratch/k/bench21.py a b"""
src=open("scratch/k/bench20.py").read()
exec(src[:src.index("for shape in ((3,320")])
exec(open("scratch/k/bench14.py").read()[0:0])
def fwd(t,g):
    above,q,k,x,qb,kb,up,down,z,gate,ang,a,_,dt,trap,skip,_,chunk,*_2=g
    return t.F.run_forward(q,k,x,qb,kb,up,down,z,skip,gate,ang,a,None,dt,trap,None,chunk_size=chunk,rotary_dim_divisor=4,dtype=torch.bfloat16)[0]
last=trees[-1]
def kept(f):
    last.S.KEPT.set([]); f(); 
for shape in ((3,320,128,8),(1,352,10,2)):
    gi=given(*shape); want=trees[0].S.mimo_backward(*gi,by=trees[0].S.TRITON)
    for t in trees: say(shape,t.name,["%.1e"%err(p,w) for p,w in zip(t.S.mimo_backward(*gi,by=t.L),want)])
    last.S.KEPT.set([]); fwd(last,gi); say(shape,"kept",["%.1e"%err(p,w) for p,w in zip(last.S.mimo_backward(*gi,by=last.L),want)]); last.S.KEPT.set(None)
def prof(f):
    f(); torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(5): f()
        torch.cuda.synchronize()
    return [(e.key[:14],round(e.device_time_total/1e3/5,3)) for e in sorted(p.key_averages(),key=lambda e:-e.device_time_total)[:6]]
for rows,heads in ((3,128),(4,112)):
    gi=given(rows,4096,heads,8)
    for turn in range(2):
        for t in trees: say(rows,heads,t.name,"forward",timed(lambda: fwd(t,gi)),"backward",timed(lambda: t.S.mimo_backward(*gi,by=t.L)),prof(lambda: t.S.mimo_backward(*gi,by=t.L)))
        def forward_kept(): last.S.KEPT.set([]); fwd(last,gi)
        a=timed(forward_kept); say(rows,heads,"kept","forward",a,"backward",timed(lambda: last.S.mimo_backward(*gi,by=last.L)),prof(lambda: last.S.mimo_backward(*gi,by=last.L))); last.S.KEPT.set(None)
    FO=sys.modules["model.layers.mamba3.hopper.fold"]
    for ahead in ((2,3),(3,3),(2,4),(3,4)):
        FO.AHEAD,FO.AHEAD_STILL=ahead; say("fold",ahead,prof(lambda: last.S.mimo_backward(*gi,by=last.L))[1:4])
    FO.AHEAD,FO.AHEAD_STILL=2,3
