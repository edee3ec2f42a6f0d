/* clones.h - loops that are compiled for wider vectors too and chosen at load time.  Without contraction and
 * reassociation all versions compute the same bits.  Resolvers run before a sanitizer's runtime is up, so sanitized
 * builds have one version. */
#ifndef MOEWE_FORMATS_CLONES_H
#define MOEWE_FORMATS_CLONES_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FMT_CLONES
#elif defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FMT_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define FMT_CLONES
#endif

#endif
