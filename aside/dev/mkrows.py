import pathlib,yaml
packs={d.name[:2]:(d,yaml.safe_load((d/'pack.yaml').read_text())) for d in sorted(pathlib.Path('packs').iterdir()) if d.name[:2].isdigit()}
rows=[]
gpu=lambda name,cmd,t=2,s=200,kind='gpu': rows.append(f'{kind} {t} {s} {name} {cmd}')
cp=lambda name,cmd,t=1,s=120: rows.append(f'cpu {t} {s} {name} OMP_NUM_THREADS=1 {cmd}')
changed=('03','11','50','56')
for n in changed:
    for pin in packs[n][1]['pins']: gpu(f'g{n}{pin}',f'python3 -m reproducers.run pack{n} --lane cuda --at {pin} --receipts /tmp/w/rec')
gpu('u50','python3 -m reproducers.upstream_tests --offline --lane cuda pack50 --receipts /tmp/w/recu')
for n in ('17','33'): gpu(f'x{n}',f'python3 -m reproducers.run pack{n} --lane cuda --census --receipts /tmp/w/recx/{n}',2,300,'alone')
for n in ('02','05','07','10','12','34','35','37','40','48','52','53','56','03','11','50','46'): gpu(f'x{n}',f'python3 -m reproducers.run pack{n} --lane cuda --census --receipts /tmp/w/recx/{n}')
gpu('m46','python3 -m reproducers.mutate pack46 --only generated --lane cuda --receipts /tmp/w/rec2')
S=lambda n,j,full=False: cp(f's{n}',f'python3 -m reproducers.mutate pack{n} {"" if full else "--only hand "}--jobs {j} --receipts /tmp/w/rec2',j)
cp('r53','python3 aside/dev/tryset.py /tmp/w/wt/r53 /tmp/w/out 1 1 aside/right3/pack53',1,600)
for n,j in (('12',6),('53',6),('52',4),('38',3),('01',4),('07',2),('02',3),('09',3),('46',2),('04',2),('43',2)): S(n,j)
for n in ('36','39','41','50','11','03','56'): S(n,2)
for n in changed:
    for pin in packs[n][1]['pins']: cp(f'c{n}{pin}',f'python3 -m reproducers.run pack{n} --lane cpu --at {pin} --receipts /tmp/w/rec')
for n in packs:
    if n not in changed and 'cpu' in packs[n][1]['lanes'] and (packs[n][0]/'fix.patch').is_file(): cp(f'c{n}',f'python3 -m reproducers.run pack{n} --lane cpu --receipts /tmp/w/recc/{n}')
for n in ('03','11','56'): cp(f'r{n}',f'python3 aside/dev/tryset.py /tmp/w/wt/r{n} /tmp/w/out 2 1 aside/right3/pack{n}',2)
print('\n'.join(rows))
