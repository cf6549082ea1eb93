"""Kernels of the model on the path, whichever tree it is of: errors against fp64, then ms of each, medians.
Run in turns: bench.py NAME [scan|m2rnn|forward]"""
import collections, json, sys
import torch
name, what = sys.argv[1], sys.argv[2]
dev = "cuda"
err = lambda a, b: ((a.double()-b.double()).norm()/b.double().norm()).item()
def timed(run, rounds=9):
    times = collections.defaultdict(list); walls = []
    run(); torch.cuda.synchronize()
    for _ in range(3):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2)); a.record()
        for _ in range(3): run()
        b.record(); torch.cuda.synchronize(); walls.append(a.elapsed_time(b)/3)
    for _ in range(rounds):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
            run(); torch.cuda.synchronize()
        for e in p.key_averages():
            if e.self_device_time_total > 20: times[e.key[:60]].append(e.self_device_time_total/1e3)
    med = {k: sorted(v)[len(v)//2] for k, v in times.items()}
    return {"wall_ms": round(sorted(walls)[1], 3), "sum_ms": round(sum(med.values()), 3), **{k: round(v, 3) for k, v in sorted(med.items(), key=lambda x: -x[1])}}
def say(**k): print(json.dumps({"tree": name, **k}), flush=True)
def m2rnn():
    from model.layers.m2rnn.triton import m2rnn_triton
    from model.layers.m2rnn.reference import m2rnn_reference
    def inputs(T, heads, K, V, seed=0):
        g = torch.Generator(device=dev).manual_seed(seed); rn = lambda *s: torch.randn(*s, generator=g, device=dev)
        d = dict(q=rn(T,K).bfloat16(), k=(rn(T,K)/8).bfloat16(), v=rn(T,heads,V).bfloat16(), log_f=-rn(T,heads).abs()*.1, W=(torch.eye(V,device=dev)+.05*rn(heads,V,V)).bfloat16())
        return {n: t.requires_grad_() for n, t in d.items()}
    cu = torch.tensor([0, 700, 701, 1025, 1500], dtype=torch.int32, device=dev)
    d = inputs(1500, 51, 64, 16); f = {n: t.detach().double().requires_grad_() for n, t in d.items()}
    y = m2rnn_triton(**d, cu_seqlens=cu); w = m2rnn_reference(**f, cu_seqlens=cu); up = torch.randn_like(y)
    gy = torch.autograd.grad(y, list(d.values()), up); gw = torch.autograd.grad(w, list(f.values()), up.double())
    say(check="m2rnn", y=err(y, w), **{n: err(a, b) for n, a, b in zip(d, gy, gw)})
    d = inputs(12288, 51, 64, 16); cu = torch.tensor([0, 4096, 8192, 12288], dtype=torch.int32, device=dev)
    for lens in ((4096,)*3, tuple([333, 600, 1200, 75, 1888]*3)):
        cu = torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], dtype=torch.int32, device=dev)
        up = torch.randn(12288, 51, 16, device=dev, dtype=torch.bfloat16)
        def whole():
            y = m2rnn_triton(**d, cu_seqlens=cu); return torch.autograd.grad(y, list(d.values()), up)
        torch.cuda.reset_peak_memory_stats(); whole(); peak = torch.cuda.max_memory_allocated()/2**30
        say(m2rnn=len(lens), gib=round(peak, 2), **timed(whole))
    from model.layers.m2rnn import triton as t
    if name == "sweep":
        for kernel in t.STAGES:
            kept = t.STAGES[kernel]
            for stages in (1, 2, 3, 4, 5, 6, 8, 10, 12):
                t.STAGES[kernel] = stages
                try: got = timed(whole, 3); say(stages=[kernel, stages], ms=got.get(kernel), wall=got["wall_ms"])
                except Exception as error: say(stages=[kernel, stages], failed=str(error)[:100])
            t.STAGES[kernel] = kept
        for tokens in (8, 16, 64, 128):
            t.TOKENS = tokens; got = timed(whole, 3); say(tokens=tokens, ms={k: got.get(k) for k in t.STAGES}, wall=got["wall_ms"])
        t.TOKENS = 32
        for read in (1, 2, 8, 16):
            t.READ = read; got = timed(whole, 3); say(read=read, ms=got.get("m2rnn_read"), wall=got["wall_ms"])
def make(B, S, R, G, H, N, P, DIV, low=torch.bfloat16):
    g = torch.Generator(device=dev).manual_seed(1); rn = lambda *s: torch.randn(*s, generator=g, device=dev)
    d = dict(Q=rn(B,S,R,G,N),K=rn(B,S,R,G,N),V=rn(B,S,H,P),Z=rn(B,S,H,P),ADT=-rn(B,H,S).abs()*.05,DT=rn(B,H,S).abs()*.1,Trap=rn(B,H,S),Q_bias=1+.1*rn(H,R,N),K_bias=1+.1*rn(H,R,N),MIMO_V=.25+.1*rn(H,R,P),MIMO_Z=1+.1*rn(H,R,P),MIMO_Out=.25+.1*rn(H,R,P),Angles=rn(B,S,H,N//DIV),D=1+.1*rn(H))
    d["ADT"][:,:,0] = -40; d["ADT"][:,:,77] = -40
    for n in ("Q", "K", "V", "Z", "Trap"): d[n] = d[n].to(low)
    return {n: t.requires_grad_() for n, t in d.items()}
def mamba():
    sys.path.insert(0, "tests/kit"); import isolated
    if missing := isolated.activate("cuda"): sys.exit(missing)
    from model.layers.mamba3 import scan, upstream
    from model.layers.mamba3.reference import mamba3_mimo_reference
    theirs = getattr(upstream.import_mamba3(), upstream.KERNEL); ours = scan.by_blocks(theirs)
    asked = dict(chunk_size=16, rotary_dim_divisor=4, dtype=torch.bfloat16, return_state=False, cu_seqlens=None)
    d = make(2,256,4,2,8,128,64,4); f = {n: t.detach().double().requires_grad_() for n, t in d.items()}
    want = mamba3_mimo_reference(**f, chunk_size=16, rotary_dim_divisor=4, dtype=torch.float64)
    up = torch.randn(want.shape, device=dev).bfloat16(); gw = torch.autograd.grad(want, list(f.values()), up.double())
    ways = {"ours": ours} | ({"theirs": theirs} if what == "both" else {})
    for way, run in ways.items():
        y = run(**d, **asked); g = torch.autograd.grad(y, list(d.values()), up)
        say(check=way, y=err(y, want), **{n: float("%.1e" % err(a, b)) for n, a, b in zip(d, g, gw)})
    d = make(3,4096,4,8,128,128,64,4); up = torch.randn_like(d["V"])
    for way, run in ways.items():
        def forward():
            with torch.no_grad(): run(**d, **asked)
        def whole(): torch.autograd.grad(run(**d, **asked), list(d.values()), up)
        say(mamba="forward", way=way, **timed(forward, 5)); say(mamba="whole", way=way, **timed(whole, 7))
    from triton import __version__
    def sweep(name, choices):
        kept = scan.OPTIONS[name]
        for choice in choices:
            scan.OPTIONS[name] = {k: v for k, v in {**kept, **choice}.items() if v}
            try: got = timed(whole, 3); say(options=[name, choice], kernel=[v for k, v in got.items() if name in k], sum=got["sum_ms"])
            except Exception as error: say(options=[name, choice], failed=str(error)[:200])
        scan.OPTIONS[name] = kept
    if what == "sweep":
        run = ours
        sweep("mimo_sums", [{"num_warps": 1}, {"num_warps": 4}, {"num_warps": 8}])
        sweep("mimo_states", [{}, {"num_warps": 4, "maxnreg": None}, {"num_warps": 8, "maxnreg": None}, {"num_warps": 8, "maxnreg": 96}, {"num_warps": 4, "maxnreg": 168}])
        sweep("mimo_fold", [{}, {"STAGES": 2}, {"STAGES": 4}, {"num_warps": 2}])
        sweep("mimo_backward", [{}, {"maxnreg": 168}])
        for columns in (8, 32):
            scan.COLUMNS = columns; sweep("mimo_fold", [{}])
        scan.COLUMNS = 16
        for carried in (128, 512):
            scan.CARRIED = carried; sweep("mimo_carry", [{}])
{"m2rnn": m2rnn}.get(what, mamba)()
