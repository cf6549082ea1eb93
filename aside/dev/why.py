import pathlib,sys
for t in ('/work/main','/tmp/wt/n51'):
    for p in pathlib.Path(t).glob('packs/*/alternatives/*.patch'):
        L=p.read_text().split('\n'); h=L[0]
        assert h.startswith('Why: '), p
        w=h[5:].strip(); w=w[0].upper()+w[1:]; w+= '' if w.endswith('.') else '.'
        if 'Why: '+w!=h: L[0]='Why: '+w; p.write_text('\n'.join(L))
