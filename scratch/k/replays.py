import glob, json
for f in sorted(glob.glob("/tmp/runs/*.json")):
    for at, d in enumerate(json.load(open(f))):
        worst = sorted(((9e9 if v is None else v, k) for k, v in d.items()), reverse=True)
        print(f.split("/")[-1], at + 2, len(d), "median %.2e" % worst[len(worst) // 2][0], " ".join(f"{v:.2e} {k.replace('decoder.layers.', '')}" for v, k in worst[:9]))
