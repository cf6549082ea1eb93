rows=[]
G=lambda name,cmd,t=2,s=100,kind='gpu': rows.append(f'{kind} {t} {s} {name} {cmd}')
C=lambda name,cmd,t,s=100: rows.append(f'cpu {t} {s} {name} OMP_NUM_THREADS=1 {cmd}')
S=lambda n,j: C(f's{n}',f'python3 -m reproducers.mutate pack{n} --only hand --jobs {j} --receipts /tmp/w/rec2',j)
J=lambda n,j,t: C(f's{n}',f'python3 -m reproducers.mutate pack{n} --only hand --jobs {j} --receipts /tmp/w/rec2',t)
J('12',16,5); J('53',12,5)
G('x07','python3 -m reproducers.run pack07 --lane cuda --census --receipts /tmp/w/recx/07')
G('m46','python3 -m reproducers.mutate pack46 --only generated --lane cuda --receipts /tmp/w/rec2')
for n,j in (('38',4),('56',5),('52',4),('01',3),('04',2),('50',2),('36',2),('41',2),('07',2)): J(n,j,j)
T=lambda kind,n,j: C(f'{kind[0]}{n}',f'python3 aside/dev/tryset.py /tmp/w/wt/{kind[0]}{n} /tmp/w/out{kind[0]} {j} 1 aside/{kind}/pack{n}',j)
for kind,n,j in (('fine','52',2),('wrong','52',3),('fine','04',2),('wrong','04',2)): T(kind,n,j)
C('r53','python3 aside/dev/tryset.py /tmp/w/wt/r53 /tmp/w/out 1 1 aside/right3/pack53',1)


import pathlib
for n in sorted(p.name[:2] for p in pathlib.Path('packs').iterdir() if p.name[:2].isdigit()):
    if n not in ('10','52','12','53','06','08','13','14','15'): C(f'o{n}',f'python3 -m reproducers.run pack{n} --lane cpu --receipts /tmp/w/recown',1)
print('\n'.join(rows))
