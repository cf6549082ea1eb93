import pathlib,re
for p in pathlib.Path('/tmp/fresh').glob('pack*/*/*.patch'):
    s=p.read_text(); t=re.sub(r'(diff --git a/\S+ b/\S+\n)(--- /dev/null\n)', r'\1new file mode 100644\n\2', s)
    if t!=s: p.write_text(t); print(p)
