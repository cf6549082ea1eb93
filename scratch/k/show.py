import glob, json
for f in sorted(glob.glob("/tmp/receipts/**/*.json", recursive=True)):
    d = json.load(open(f)).get("predicate", {}).get("patchlane", {})
    print(f.split("/")[-1], d.get("at"), d.get("verdict"), (d.get("reason") or "")[:300])
    for name in ("pristine", "patched"):
        for arm in d.get(name) or []:
            print(" ", name, arm.get("outcome"), str(arm.get("reason"))[:400])
            for c in arm.get("checks", []): print("    ", c["role"], c["state"], c["measured"], c["limit"], c["name"], (c.get("detail") or "")[:120])
