// <condition_variable>, for a file that waits on one: include this in its place.
//
// g++ 12 made condition_variable::wait noexcept and gave that a version of its own, GLIBCXX_3.4.30, which the libstdc++
// of RHEL 9 does not have. The one before takes the same arguments and is in every libstdc++ since 2010: a file that
// includes this asks for it. tests/symbol_floor_test.py finds a library in which a file did not.
#pragma once

#include <condition_variable>

#ifdef __GLIBCXX__
asm(".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE, "
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#endif
