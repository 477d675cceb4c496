#ifndef BAYARD_DISPATCH_H
#define BAYARD_DISPATCH_H

namespace bayard {

// A BAYARD_ code; null or "" takes the best. Not while a job runs.
int choose_isa(const char* name);
bool isa_available(const char* name);

}  // namespace bayard

#endif
