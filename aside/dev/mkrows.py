rows=[]
G=lambda name,cmd,t=2,s=100,kind='gpu': rows.append(f'{kind} {t} {s} {name} {cmd}')
C=lambda name,cmd,t,s=100: rows.append(f'cpu {t} {s} {name} OMP_NUM_THREADS=1 {cmd}')
S=lambda n,j: C(f's{n}',f'python3 -m reproducers.mutate pack{n} --only hand --jobs {j} --receipts /tmp/w/rec2',j)
S('12',16); S('53',12)  # their controls alone take 700 s: first, and with as many jobs as there are left
for n,pins in (('52',('live','newest','dev','beside_12')),('10',('live',))):
    for pin in pins: G(f'g{n}{pin}',f'python3 -m reproducers.run pack{n} --lane cuda --at {pin} --receipts /tmp/w/rec')
G('x07','python3 -m reproducers.run pack07 --lane cuda --census --receipts /tmp/w/recx/07')
G('m46','python3 -m reproducers.mutate pack46 --only generated --lane cuda --receipts /tmp/w/rec2')
for n,j in (('38',4),('09',4),('56',4),('52',3),('10',3),('01',3),('04',2),('50',2),('36',2),('41',2),('07',2),('43',1)): S(n,j)
for n,pins in (('52',('live','newest','dev','beside_12')),('10',('live',))):
    for pin in pins: C(f'c{n}{pin}',f'python3 -m reproducers.run pack{n} --lane cpu --at {pin} --receipts /tmp/w/rec',1)
T=lambda kind,n,j: C(f'{kind[0]}{n}',f'python3 aside/dev/tryset.py /tmp/w/wt/{kind[0]}{n} /tmp/w/out{kind[0]} {j} 1 aside/{kind}/pack{n}',j)
for kind,n,j in (('fine','52',2),('wrong','52',3),('fine','04',2),('wrong','04',2)): T(kind,n,j)
C('r53','python3 aside/dev/tryset.py /tmp/w/wt/r53 /tmp/w/out 1 1 aside/right3/pack53',1)
print('\n'.join(rows))
