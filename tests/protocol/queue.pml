/*
 * The protocol of the queue: register, claim, heartbeat, complete, expire, and the turn of an identifier.
 *
 * There are two tasks. Task 0 has the higher priority, task 1 the lower sequence. Each statement of SQL is atomic and
 * sees what was committed. A transaction keeps its locks until it ends. Spin searches all interleavings. Variables that
 * are not needed any more are reset, so that states which differ only in them are one state.
 *
 * One of these names selects what can go wrong:
 *
 *     CRASHES       Both tasks are of one identifier, and task 0 is pushed at any moment. Two programs of the name A
 *                   may be killed at any moment; the second one replaces the first one while that one may still run.
 *                   One program of the name B is never killed. Leases of programs that are alive lapse, too.
 *     LOST_ANSWERS  The answers to a poll and to a completion are lost. The server carries out such a poll, or such a
 *                   completion together with a poll, at any later moment. A may be killed, but not within a completion.
 *                   One decision may be a FAILURE with another attempt left.
 *     PURGE         Another transaction removes a held task and then renews the lease of its owner. A may be killed.
 *     DRAIN         A and B end when they find nothing to do.
 *     STREAM        The tasks are of two identifiers. Each completion of task 1 is followed by another push of it, so
 *                   that the only program never rests. It loses the answer to a poll.
 *
 * LIVENESS adds the claim that all tasks end, under weak fairness: a process that can continue does so at some time.
 *
 * Each of the other names takes a rule out of the protocol, or restores a bug of the past. __main__.py lists them, each
 * with what the search has to find.
 */

#define TASKS 2
#define NAMES 2    /* A and B */
#define NONE 255

/* How often the lease of a program lapses that is alive. With LIVENESS each lapse costs ten times the memory. */
#if defined(CRASHES) && !defined(LIVENESS)
#define LAPSES 2
#elif defined(PURGE)
#define LAPSES 1
#else
#define LAPSES 0
#endif

#if defined(LOST_ANSWERS) || defined(STREAM)
#define LATE_POLLS
#endif

/* A completion without the attempt. */
#if !defined(LOST_ANSWERS) || defined(NO_ATTEMPT) || defined(REPEATED_DECISION)
#define is_attempt(t, attempt) true
#else
#define is_attempt(t, attempt) (attempts[t] == attempt)
#endif

mtype = { ABSENT, READY, ACTIVE, ENDED };

/* What was committed. */
mtype state[TASKS] = ABSENT;
byte holder[TASKS] = NONE;  /* the name of the owner that holds the task */
byte fence[NAMES];          /* the fence of the latest registration of a name; 0 before the first one */
bool leased[NAMES];         /* the registration has a lease, lapsed or not */
bool lapsed[NAMES];

/* Locks until the end of a transaction. */
byte task_lock[TASKS] = NONE;    /* FOR UPDATE: the process, or NONE */
byte identifier_lock = NONE;
byte owner_shares[NAMES];        /* FOR KEY SHARE: how many processes */
byte owner_lock[NAMES] = NONE;   /* FOR UPDATE */

/* What only the rules and the claims read. */
bool is_kept[NAMES];             /* the program of the latest registration is alive, and renews the lease */
byte effects[TASKS];
byte working;                    /* programs that may still claim */
byte lapses;

#define is_free(t) (task_lock[t] == NONE || task_lock[t] == _pid)
#define is_current(name, mine) (leased[name] && fence[name] == mine)
#define is_held(t, name) (state[t] == ACTIVE && holder[t] == name)
#define is_blocked (state[0] == ACTIVE || state[1] == ACTIVE)
#define all_ended (state[0] == ENDED && state[1] == ENDED)

#ifdef LOST_ANSWERS
#define waits_for_retry(t) (state[t] == READY && attempts[t] > 0)
#else
#define waits_for_retry(t) false
#endif

/*
 * The READY task that has the turn by the contract, or NONE: an ACTIVE task has the turn itself. Next comes the
 * attempted task with the lowest sequence, and then the first task by priority.
 */
#define first_ready (state[0] == READY -> 0 : (state[1] == READY -> 1 : NONE))
#define contract_turn (is_blocked -> NONE : (waits_for_retry(1) -> 1 : first_ready))

#ifdef LATE_POLLS
/* A call whose answer is lost: the server may still carry it out. */
bool is_sent;
byte sent_name, sent_fence;
byte sent_task = NONE, sent_attempt;  /* what it completes before it polls, or NONE */
byte poll_losses;
#endif
#ifdef LOST_ANSWERS
byte attempts[TASKS];
byte completion_losses, failures;
#endif

/* A registration replaces the one before of its name. It waits for the transactions that use the owner. */
inline register(name, mine) {
    atomic {
        owner_lock[name] == NONE && owner_shares[name] == 0 ->
        fence[name] = fence[name] + 1;
        mine = fence[name];
        leased[name] = true;
        lapsed[name] = false;
        is_kept[name] = true
    }
}

/* The first task that a registration holds, or NONE. */
inline find_held(name, mine, task) {
    atomic {
        if
        :: is_current(name, mine) && is_held(0, name) -> task = 0
        :: is_current(name, mine) && !is_held(0, name) && is_held(1, name) -> task = 1
        :: else -> task = NONE
        fi
    }
}

/* The READY task that a poll finds to have the turn, or NONE. */
inline find_turn(turn) {
#if defined(STREAM)
    turn = first_ready
#elif defined(NO_RETRY_TURN)
    turn = (is_blocked -> NONE : first_ready)
#else
    turn = contract_turn
#endif
}

#ifdef CLAIM_BY_NAME
#define has_lease(name, mine) leased[name]
#else
#define has_lease(name, mine) is_current(name, mine)
#endif

/* Locks the owner FOR KEY SHARE. */
inline share_owner(name) {
#ifndef NO_OWNER_LOCK
    owner_shares[name] = owner_shares[name] + 1
#else
    skip
#endif
}

inline unshare_owner(name) {
#ifndef NO_OWNER_LOCK
    owner_shares[name] = owner_shares[name] - 1
#else
    skip
#endif
}

#ifdef NO_OWNER_LOCK
#define is_owner_free(name) true
#else
#define is_owner_free(name) (owner_lock[name] == NONE)
#endif

/*
 * A poll of one task: lock the owner, find the turn, lock its identifier, look again, and claim. It never waits. If the
 * program is killed meanwhile, the server rolls back.
 */
inline poll(name, mine, task, got, was_pushed, may_be_killed, is_killed) {
    atomic {
        task = NONE;
        was_pushed = (state[0] != ABSENT);
        if                                                           /* SKIP LOCKED, and a lease that has not lapsed */
        :: has_lease(name, mine) && !lapsed[name] && is_owner_free(name) -> share_owner(name); got = true
        :: else -> got = false; was_pushed = false
        fi
    };
    if
    :: got ->
        byte found;
        find_turn(task);
#if !defined(NO_IDENTIFIER_LOCK) && !defined(STREAM)
        atomic {                                                     /* FOR UPDATE SKIP LOCKED */
            if
            :: task != NONE && identifier_lock == NONE -> identifier_lock = _pid
            :: task != NONE && identifier_lock != NONE -> task = NONE
            :: task == NONE -> skip
            fi
        };
#ifndef NO_SECOND_LOOK
        atomic {                                                     /* does the same task still have the turn? */
            if
            :: task != NONE -> find_turn(found); task = (found == task -> task : NONE)
            :: else -> skip
            fi;
            found = 0
        };
#endif
#endif
        atomic {                                                     /* FOR UPDATE SKIP LOCKED of a READY task */
            if
            :: task != NONE && is_free(task) && state[task] == READY -> task_lock[task] = _pid
            :: task != NONE && (!is_free(task) || state[task] != READY) -> task = NONE
            :: task == NONE -> skip
            fi
        };
        atomic {                                                     /* commit, or roll back */
            if
            :: task != NONE ->
#ifndef STREAM
                assert(state[1 - task] != ACTIVE);                   /* one task of the identifier at a time */
                found = contract_turn;
                assert(task == found || !was_pushed);                /* unless task 0 came meanwhile, it has the turn */
                found = 0;
#endif
#ifdef LOST_ANSWERS
                attempts[task] = attempts[task] + 1;
#endif
                state[task] = ACTIVE;
                holder[task] = name;
                task_lock[task] = NONE
            :: may_be_killed ->
                is_killed = true;
                if
                :: task != NONE -> task_lock[task] = NONE; task = NONE
                :: else -> skip
                fi
            :: task == NONE -> skip
            fi;
            if
            :: identifier_lock == _pid -> identifier_lock = NONE
            :: else -> skip
            fi;
            unshare_owner(name);
            got = false;
            was_pushed = false
        }
    :: else -> skip
    fi
}

/* A completion: lock the owner, lock the task, and commit the decision with its effect. It waits for both locks. */
inline complete(name, mine, task, attempt, got, may_be_killed, is_killed) {
    atomic {
        if
        :: has_lease(name, mine) && is_owner_free(name) -> share_owner(name); got = true
        :: !has_lease(name, mine) -> got = false
        fi
    };
    if
    :: got ->
        atomic {
            if
#ifdef NO_HOLDER
            :: is_free(task) -> task_lock[task] = _pid
#else
            :: is_free(task) && is_held(task, name) && is_attempt(task, attempt) -> task_lock[task] = _pid
            :: is_free(task) && !(is_held(task, name) && is_attempt(task, attempt)) -> got = false
#endif
            fi
        };
        atomic {                                                     /* commit, or roll back */
            if
            :: got ->
                assert(fence[name] == mine);                         /* no decision of a replaced registration */
                assert(holder[task] == name);                        /* nor after the task has left its owner */
#ifdef LOST_ANSWERS
                assert(attempts[task] == attempt);                   /* nor on a later attempt */
#endif
                holder[task] = NONE;
                if
#ifdef STREAM
                :: task == 1 -> state[task] = READY
                :: task == 0 -> state[task] = ENDED
#else
                :: state[task] = ENDED;
                   effects[task] = effects[task] + 1;
                   assert(effects[task] == 1)                        /* no task ends twice */
#ifdef LOST_ANSWERS
                :: failures < 1 -> failures = failures + 1; state[task] = READY
#endif
#endif
                fi;
                task_lock[task] = NONE
            :: got && may_be_killed -> is_killed = true; task_lock[task] = NONE
            :: !got -> skip
            fi;
            unshare_owner(name);
            got = false
        }
    :: else -> skip
    fi
}

proctype Program(byte name; bool may_be_killed) {
    byte mine, task, attempt;
    bool got, was_pushed, is_killed;
#ifdef LATE_POLLS
    bool must_look, in_doubt, was_busy, was_sent;
#endif
    register(name, mine);
    find_held(name, mine, task);                                     /* the tasks of the registration before */
    do
    :: is_killed -> break
    :: may_be_killed && !is_killed -> is_killed = true
    :: task != NONE && !is_killed ->
#ifdef LOST_ANSWERS
        attempt = attempts[task];
        do
        :: complete(name, mine, task, attempt, got, false, is_killed); task = NONE; break
        :: atomic { completion_losses < 1 -> completion_losses = completion_losses + 1 };
            if                                                       /* the answer is lost: it was done, or not */
            :: complete(name, mine, task, attempt, got, false, is_killed)
            :: skip
#ifndef REPEATED_DECISION
            :: atomic {                                              /* or it will be, together with a poll */
                    !is_sent ->
                    is_sent = true;
                    sent_name = name;
                    sent_fence = mine;
                    sent_task = task;
                    sent_attempt = attempt;
                    must_look = true;
                    in_doubt = true
                }
#endif
            fi;
            atomic {                                                 /* the worker repeats it for tasks that it holds */
                if
#ifdef REPEATED_DECISION
                :: is_current(name, mine) && is_held(task, name) -> skip
#else
                :: is_current(name, mine) && is_held(task, name) && attempts[task] == attempt -> skip
#endif
                :: else -> task = NONE; break
                fi
            }
        od;
        attempt = 0
#else
        complete(name, mine, task, attempt, got, may_be_killed, is_killed);
        task = NONE
#endif
#ifdef LATE_POLLS
        ; was_busy = true
#endif
    :: task == NONE && !is_killed && is_current(name, mine) && !all_ended ->
#ifdef LATE_POLLS
        if
#ifdef BUSY_WORKER
        :: must_look || (in_doubt && !was_busy) ->
#else
        :: must_look || in_doubt ->
#endif
            atomic {                                                 /* looks for tasks that a lost poll has claimed */
                was_sent = is_sent;
                find_held(name, mine, task);
                must_look = false;
#ifdef LATE_CLAIM
                in_doubt = false;
#else
                in_doubt = in_doubt && was_sent;                     /* no poll is late by three leases */
#endif
                was_sent = false
            }
        :: else -> skip
        fi;
        was_busy = false;
        if
        :: task != NONE -> goto next
        :: atomic {
                task == NONE && poll_losses < 1 && !is_sent ->       /* the answer to this poll is lost */
                poll_losses = poll_losses + 1;
                is_sent = true;
                sent_name = name;
                sent_fence = mine;
                must_look = true;
                in_doubt = true
            };
            goto next
        :: task == NONE -> skip
        fi;
#endif
        poll(name, mine, task, got, was_pushed, may_be_killed, is_killed);
#ifdef DRAIN
        if
        :: task != NONE -> skip
#ifndef EMPTY_POLL_ENDS
        :: atomic { task == NONE && !is_blocked && (state[0] == READY || state[1] == READY) -> skip }  /* polls again */
        :: task == NONE && (is_blocked || all_ended) -> break
#else
        :: task == NONE -> break
#endif
        fi
#else
        if
        :: task == NONE && is_blocked && !is_killed ->
            /* waits: a poll finds nothing before the task that blocks the identifier has left its owner */
            if
#ifdef LATE_POLLS
            :: must_look || in_doubt -> skip
#endif
            :: !is_blocked || !is_current(name, mine) -> skip
            :: may_be_killed -> is_killed = true
            fi
        :: else -> skip
        fi
#endif
next:   skip
    :: task == NONE && all_ended -> break
    :: task == NONE && fence[name] != mine -> break                  /* a later registration has replaced this one */
    :: task == NONE && !is_killed && fence[name] == mine && !leased[name] && !all_ended ->
        register(name, mine);                                        /* its lease has expired */
        find_held(name, mine, task)
    od;
    atomic {
        if
        :: fence[name] == mine -> is_kept[name] = false
        :: else -> skip
        fi;
        working = working - 1;
        mine = 0;
        task = NONE;
        is_killed = false;
#ifdef LATE_POLLS
        must_look = false;
        in_doubt = false;
        was_busy = false
#endif
    }
}

/* A lease lapses at any moment. If its program is alive, it lapses only a few times in a run. */
active proctype Time() {
end:
    do
    :: atomic { leased[0] && !lapsed[0] && is_kept[0] && lapses < LAPSES -> lapsed[0] = true; lapses = lapses + 1 }
    :: atomic { leased[1] && !lapsed[1] && is_kept[1] && lapses < LAPSES -> lapsed[1] = true; lapses = lapses + 1 }
    :: atomic { leased[0] && !lapsed[0] && !is_kept[0] && !all_ended -> lapsed[0] = true }
    :: atomic { leased[1] && !lapsed[1] && !is_kept[1] && !all_ended -> lapsed[1] = true }
    od
}

/* The heartbeats of the programs that are alive renew also a lease that has lapsed. */
active proctype Heartbeat() {
end:
    do
    :: atomic { leased[0] && lapsed[0] && is_kept[0] && owner_lock[0] == NONE -> lapsed[0] = false }
    :: atomic { leased[1] && lapsed[1] && is_kept[1] && owner_lock[1] == NONE -> lapsed[1] = false }
    od
}

#ifndef NO_EXPIRY
/* Ends lapsed leases: finds one, locks its owner, looks again, and makes its tasks READY. */
active proctype Expiry() {
    byte name, task;
#ifdef OLD_SNAPSHOT
    byte seen[TASKS] = NONE;                                         /* the snapshot of a REPEATABLE READ transaction */
#endif
end:
    do
    :: atomic {
            if
            :: leased[0] && lapsed[0] && owner_shares[0] == 0 -> name = 0
            :: leased[1] && lapsed[1] && owner_shares[1] == 0 -> name = 1
            fi
        };
        atomic {                                                     /* FOR UPDATE SKIP LOCKED */
            if
            :: owner_lock[name] == NONE && owner_shares[name] == 0 -> owner_lock[name] = _pid
            :: else -> goto next
            fi
        };
#ifdef LOCK_ORDER
        (!is_held(0, name) || is_free(0)) && (!is_held(1, name) || is_free(1));
#endif
        atomic {
            if
#ifndef NO_LAPSE_CHECK
            :: !leased[name] || !lapsed[name] -> skip
#endif
            :: (is_held(0, name) && !is_free(0)) || (is_held(1, name) && !is_free(1)) ->
                skip                                                 /* lock_timeout: leaves it to a later call */
            :: else ->
                assert(lapsed[name]);                                /* a lease that was renewed does not end */
                leased[name] = false;
                lapsed[name] = false;
                for (task : 0 .. TASKS - 1) {
                    if
#ifdef OLD_SNAPSHOT
                    :: is_held(task, name) && seen[task] == name ->
#else
                    :: is_held(task, name) ->
#endif
#ifdef LOST_ANSWERS
                        attempts[task] = attempts[task] - 1;         /* a crash uses no attempt */
#endif
                        state[task] = READY;
                        holder[task] = NONE
                    :: else -> skip
                    fi
                }
            fi;
            owner_lock[name] = NONE
        };
next:   atomic {
            name = 0;
            task = 0
#ifdef OLD_SNAPSHOT
            ; seen[0] = holder[0];
            seen[1] = holder[1]
#endif
        }
    od
}
#endif

#ifdef LATE_POLLS
/* The server carries out a call that has lost its session: at any later moment, or never. */
active proctype Session() {
    byte task = NONE;
    bool got, was_pushed, is_killed;
end:
    do
    :: is_sent ->
        if
#ifdef LOST_ANSWERS
        :: sent_task != NONE ->
            complete(sent_name, sent_fence, sent_task, sent_attempt, got, false, is_killed);
            atomic { sent_task = NONE; sent_attempt = 0 };
            poll(sent_name, sent_fence, task, got, was_pushed, false, is_killed)
#endif
        :: sent_task == NONE -> poll(sent_name, sent_fence, task, got, was_pushed, false, is_killed)
        :: skip
        fi;
        atomic { is_sent = false; sent_name = 0; sent_fence = 0; sent_task = NONE; sent_attempt = 0; task = NONE }
    od
}
#endif

#ifdef PURGE
/* A transaction that removes a held task, and then renews the lease of its owner. */
active proctype Purge() {
    byte task, name;
end:
    atomic {
        if
        :: state[0] == ACTIVE && is_free(0) -> task = 0
        :: state[1] == ACTIVE && is_free(1) -> task = 1
        fi;
        task_lock[task] = _pid;
        name = holder[task]
    };
    atomic {
        owner_lock[name] == NONE ->                                  /* FOR NO KEY UPDATE */
        lapsed[name] = false;
        state[task] = ENDED;
        holder[task] = NONE;
        task_lock[task] = NONE;
        task = 0;
        name = 0
    }
}
#endif

#if defined(CRASHES) || defined(LOST_ANSWERS)
/* A transaction that commits task 0 at any moment. */
active proctype Push() {
    state[0] = READY
}
#endif

init {
    atomic {
        state[1] = READY;
#if !defined(CRASHES) && !defined(LOST_ANSWERS)
        state[0] = READY;
#endif
#ifdef CRASHES
        working = 3;
        run Program(0, true);
        run Program(0, true);
        run Program(1, false)
#endif
#if defined(LOST_ANSWERS) || defined(PURGE)
        working = 2;
        run Program(0, true);
        run Program(1, false)
#endif
#ifdef DRAIN
        working = 2;
        run Program(0, false);
        run Program(1, false)
#endif
#ifdef STREAM
        working = 1;
        run Program(0, false)
#endif
    };
    working == 0;
    assert(all_ended)                                                /* no task is lost */
}

#ifdef LIVENESS
#ifdef STREAM
ltl task_0_ends { <> (state[0] == ENDED) }
#else
ltl all_tasks_end { <> all_ended }
#endif
#endif
