#!/usr/bin/env bash
# Installs the built library to a temporary prefix and builds and runs both examples against it, as a
# user would: through the CMake package and through pkg-config. Also holds the public headers to
# C++17 and C99, and the exported symbols to the public names.
# Usage: install_examples.sh BUILD_DIRECTORY SOURCE_DIRECTORY C_COMPILER CXX_COMPILER
set -euo pipefail
build=$1 source=$2 cc=$3 cxx=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset CFLAGS CXXFLAGS LDFLAGS

cmake --install "$build" --prefix "$work/prefix" >/dev/null
# Moved, so that nothing can depend on where it was installed first.
mv "$work/prefix" "$work/moved"
prefix=$work/moved

echo "== headers alone: C++17, C99"
for header in "$prefix"/include/tilewise/*.hpp "$prefix"/include/tilewise/*.h; do
  echo "#include <tilewise/$(basename "$header")>" >"$work/header.cpp"
  "$cxx" -std=c++17 -Wall -Wextra -pedantic -Werror -fsyntax-only -I"$prefix/include" \
    "$work/header.cpp"
done
for header in "$prefix"/include/tilewise/*.h; do
  echo "#include <tilewise/$(basename "$header")>" >"$work/header.c"
  echo "int unused;" >>"$work/header.c"
  "$cc" -std=c99 -Wall -Wextra -pedantic -Werror -fsyntax-only -I"$prefix/include" "$work/header.c"
done

echo "== CMake package"
cmake -S "$source/examples" -B "$work/examples" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" >/dev/null
cmake --build "$work/examples" >/dev/null
"$work/examples/attention_c"
"$work/examples/attention_cpp"

echo "== pkg-config"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name tilewise.pc)")
export PKG_CONFIG_PATH
read -ra flags <<<"$(pkg-config --cflags --libs tilewise)"
library_dir=$(pkg-config --variable=libdir tilewise)
"$cc" -std=c99 -Wall -Wextra -pedantic "$source/examples/attention.c" "${flags[@]}" -o "$work/c"
"$cxx" -std=c++17 -Wall -Wextra -pedantic "$source/examples/attention.cpp" "${flags[@]}" \
  -o "$work/cpp"
LD_LIBRARY_PATH=$library_dir "$work/c" >"$work/c.out"
LD_LIBRARY_PATH=$library_dir "$work/cpp" >"$work/cpp.out"
grep -q '^sum O ' "$work/c.out"
grep -q '^sum O ' "$work/cpp.out"

library=$library_dir/libtilewise.so
if [[ -e $library ]]; then
  echo "== exported symbols"
  foreign=$(nm -DC --defined-only "$library" | awk '$2 ~ /[TDBR]/ { $1 = $2 = ""; print }' |
    grep -vE '^ *(tw_|tilewise::)' || true)
  [[ -z $foreign ]] || { echo "not of the public face: $foreign"; exit 1; }
fi
echo "install: all well"
