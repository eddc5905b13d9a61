#!/bin/sh
# Builds every NAME.bpf.c here into NAME.bpf.o: clang and llvm-strip (any version from 14 on), nothing else.
#
#   build.sh            build, and say with which clang in NAME.bpf.o.clang
#   build.sh --check    build elsewhere and compare with what is checked in; 0: the same, 1: not, 3: other clang
set -eu
cd "$(dirname "$0")"
clang=${CLANG:-clang}
strip=${LLVM_STRIP:-llvm-strip}
major=$("$clang" -dumpversion | cut -d. -f1)
into=$PWD
check=${1:-}
if [ "$check" = --check ]; then
	into=$(mktemp -d)
	trap 'rm -rf "$into"' EXIT
fi
result=0
for source in *.bpf.c; do
	name=${source%.c}
	"$clang" -O2 -g -target bpf -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter -Wno-unused-function \
		-ffile-prefix-map="$PWD"=. -fdebug-compilation-dir=. -c "$source" -o "$into/$name.o"
	"$strip" -g "$into/$name.o"
	if [ "$check" != --check ]; then
		echo "$major" >"$name.o.clang"
		echo "$name.o: clang $major"
	elif cmp -s "$into/$name.o" "$name.o"; then
		echo "$name.o: is what $source makes"
	elif [ "$(cat "$name.o.clang")" != "$major" ]; then
		echo "$name.o: was built by clang $(cat "$name.o.clang"), this is $major: cannot compare" >&2
		[ $result = 0 ] && result=3
	else
		echo "$name.o: is not what $source makes: run native/bpf/build.sh" >&2
		result=1
	fi
done
exit $result
