"""Stories of things: hidden, counted, handed on, needed, made and sold."""
# in templates and code: A, B, C, X, Y persons   t thing   p place   a animal   n, m counts   x adjective

from .telling import UNEVEN, Teller, listed
from .words import COUNTABLE, HIDING_PLACES, JOBS, NUMBERS, PORTABLE, PROBLEMS, THINGS, Thing, with_article


def hide(teller: Teller) -> None:
    """Someone hides a thing, someone else may move it: where will the first one look?"""
    say, dice = teller.say, teller.dice
    A, B, t = teller.person(), teller.person(), dice.pick(PORTABLE, UNEVEN)
    x, home = teller.adjective(t), dice.pick(t.places)
    teller.introduce(A, home)
    (preposition, box), (other_preposition, other_box) = dice.sample(HIDING_PLACES, 2, UNEVEN)
    hidden = {"in": preposition, "c": teller.color(), "box": box}
    moved_to = {"in": other_preposition, "box": other_box}
    say("[A.He] had [x] [t]. [A] {put|hid|left|placed} the <<[t]>> [in] the [c] [box].", A=A, x=with_article(x), t=t, **hidden)
    away = teller.place(home)
    teller.go(A, away, "Then [A.he]")
    if is_moved := dice.flip(0.7):
        say("{Soon|Later|After a while} [B] came, took the [t] and put it [in] the [box].", B=B, t=t, **moved_to)
    else:
        say("{Soon|Later|After a while} [B] came, saw the [t] and left it there.", B=B, t=t)
    if dice.flip(0.4):
        teller.passing_animal()
    say("[A] {came back|returned} from the <<[p]>> and looked <<[in]>> the <<[c]>> <<[box]>>.", A=A, p=away, **hidden)
    if is_moved:
        say("The <<[t]>> was {gone|not there}! [A] {asked|called} <<[B]>>.", A=A, B=B, t=t)
        teller.talk(B, "It is <<[in]>> the <<[box]>>.", **moved_to)
        say("[A] {found|got} the <<[t]>> {again|at last} and {smiled|laughed|danced|thanked <<[B]>>}.", A=A, B=B, t=t)
    else:
        say("The <<[x]>> <<[t]>> was still {there|in its place}.", x=x, t=t)
    teller.end(A)


def count(teller: Teller) -> None:
    """Gains and losses, and what is left."""
    say, dice = teller.say, teller.dice
    A, B, t, n = teller.person(), teller.person(), dice.pick(COUNTABLE, UNEVEN), dice.number(2, 9)
    teller.introduce(A, dice.pick(t.places))
    say("[A.He] {had|found|picked|bought} [n].", A=A, n=t.counted(n))
    finds = ("{Then|Later|After that} [A.he] {found|got|bought|picked} [m] more.", 1)
    gives = ("[A.He] gave [m] to {[B]|[A.his] friend [B]}.", -1)
    loses = ("[m] of them {got lost|fell into the water|broke|disappeared}.", -1)
    gets = ("[B] {came by|came along|was there} and gave [A.him] [m].", 1)
    looks = ("[A.He] {counted them|looked at them}: <<[n]>>.", 0)
    for _ in range(dice.number(1, 3)):
        possible = [finds, gives, loses, gets, looks] if 2 <= n <= 14 else [finds, gets, looks] if n < 2 else [gives, loses, looks]
        template, sign = dice.pick(possible)
        m = 0 if sign == 0 else dice.number(1, 6 if sign > 0 else min(n - 1, 5))
        n += sign * m
        say(template, A=A, B=B, m=NUMBERS[m], n=NUMBERS[n])
    say("{Now|In the end} [A] had <<[n]>> <<[t]>>.", A=A, n=NUMBERS[n], t=t.singular if n == 1 else t.plural)
    teller.end(A, is_happy=n > 1)


def chain(teller: Teller) -> None:
    """A thing passes through several hands: who has it?"""
    say, dice = teller.say, teller.dice
    persons, t = [teller.person() for _ in range(3)], dice.pick(THINGS.values(), UNEVEN)
    A, B, C = persons
    x = teller.adjective(t)
    teller.introduce(A, dice.pick(t.places))
    say("[A], [B] and [C] {met there|were friends|played together}. [A] had [x] [t].", A=A, B=B, C=C, x=with_article(x), t=t)
    owner = A
    for _ in range(dice.number(1, 3)):
        taker, how = dice.pick([person for person in persons if person is not owner]), dice.number(0, 2)
        if how == 0:
            say("{Then|Later|Soon} <<[X]>> gave the <<[t]>> to [Y].", X=owner, Y=taker, t=t)
        elif how == 1:
            teller.talk(taker, "{May I have|Can I see|Do you still need} the <<[t]>>?", t=t)
            say("<<[X]>> {nodded|smiled|agreed} and {handed|passed} it to <<[Y]>>.", X=owner, Y=taker)
        else:
            say("[Y] {took|grabbed} the <<[t]>> from <<[X]>>{ and ran away| and laughed|}.", X=owner, Y=taker, t=t)
        owner = taker
        if dice.flip(0.25):
            teller.passing_animal()
    asked = '{A mother|The teacher|An old man} asked, "Who has the <<[x]>> <<[t]>>?"'
    say(asked if dice.flip(0.5) else "Who had the <<[x]>> <<[t]>> {now|in the end}?", x=x, t=t)
    say("<<[X]>> had {it|the <<[t]>>}.", X=owner, t=t)
    teller.end(owner)


def quest(teller: Teller) -> None:
    """A bag with things, a problem, and the thing that helps."""
    say, dice = teller.say, teller.dice
    A, problem = teller.person(), dice.pick(PROBLEMS)
    tool = THINGS[problem.tool]
    packed, has_tool = dice.sample([t for t in PORTABLE if t is not tool], 2, UNEVEN), dice.flip(0.75)
    if has_tool:
        packed.insert(dice.number(0, 2), tool)
    teller.introduce(A)
    say("[A.He] packed [things] into {a bag|a basket|a backpack}.", A=A, things=listed(with_article(t) for t in packed))
    p = teller.place()
    worker = dice.pick([job.name for job in JOBS])
    say("On the way to the [p], [A.he] {met|saw|passed} {a|an old|a friendly} [worker].", A=A, p=p, worker=worker)
    if dice.flip(0.5):
        teller.passing_animal()
    say("{Suddenly|Then|Near the <<[p]>>} [A.he] saw that [problem].", A=A, p=p, problem=problem.what)
    if has_tool:
        say("[A] {remembered|took out|quickly got} the <<[t]>>. [A.He] <<[rescue]>>.", A=A, t=tool, rescue=problem.rescue)
    else:
        B = teller.person()
        say("[A] {had no|needed a|wished for a} <<[t]>>. {Luckily|But} [B] had one.", A=A, B=B, t=tool)
        say("They <<[rescue]>>.", rescue=problem.rescue)
        teller.talk(A, "Thank you, <<[B]>>!", B=B)
    say("Everyone <<[at]>> {cheered|clapped|was glad}.", at=p.at)
    teller.end(A)


def job(teller: Teller) -> None:
    """A day at work: tool, material, product, customers and coins."""
    say, dice, A = teller.say, teller.dice, teller.person()
    work = dice.pick(JOBS)
    say("[A] {was|worked as} [job]{ in a small town| in a big city| by the sea|}.", A=A, job=with_article(work.name))
    start = "{Every morning|Each day|At six} [A.he] went to the <<[p]>> and {took|used} the <<[tool]>> and some <<[material]>>."
    say(start, A=A, p=work.place, tool=work.tool, material=work.material)
    t, n = THINGS[dice.pick(work.products.split())], dice.number(3, 12)
    say("{By noon|Before lunch|Soon} [A.he] had <<[verb]>> [n].", A=A, verb=work.verb, n=t.counted(n))
    n = _sell(teller, t, n)
    say(f"{{At night|In the evening}}, <<[n]>> {'was' if n == 1 else 'were'} {{left|still there}}.", n=NUMBERS[n])
    if dice.flip(0.5):
        say("The <<[job]>> put the <<[tool]>> away.", job=work.name, tool=work.tool)
    teller.end(A)


def _sell(teller: Teller, t: Thing, n: int) -> int:
    """One or two customers; how many things are left."""
    say, dice = teller.say, teller.dice
    price = dice.number(1, 4)
    for _ in range(dice.number(1, 2)):
        if n < 2:
            break
        B, m = teller.person(), dice.number(1, min(4, n - 1))
        n -= m
        say("[B] came {in|to the door} and bought [m].", B=B, m=t.counted(m))
        if not dice.flip(0.7):
            teller.talk(B, "{What|Such} [x] [t]!", x=dice.pick(t.adjectives), t=t.plural)
        elif m == 1:
            say("[B.He] paid [coins] for it.", B=B, coins=THINGS["coin"].counted(price))
        else:
            say("[B.He] paid [coins] for each, <<[all]>> in all.", B=B, coins=THINGS["coin"].counted(price), all=NUMBERS[m * price])
    return n


def sums(teller: Teller) -> None:
    """A bare word problem."""
    say, dice, A = teller.say, teller.dice, teller.person()
    t, kind, n = dice.pick(COUNTABLE, UNEVEN), dice.number(0, 2), dice.number(1, 10)
    if kind == 0:
        m = dice.number(1, 10)
        say("Question: [A] has [n]. [A.He] {finds|gets|buys} [m] more.", A=A, n=t.counted(n), m=NUMBERS[m])
        say("How many <<[t]>> does [A.he] have? Answer: <<[sum]>>.", A=A, t=t.plural, sum=NUMBERS[n + m])
    elif kind == 1:
        m = dice.number(0, n)
        say("Question: [A] has [n]. [A.He] {loses|sells|gives away} [m].", A=A, n=t.counted(n), m=NUMBERS[m])
        say("How many <<[t]>> are left? Answer: <<[rest]>>.", t=t.plural, rest=NUMBERS[n - m])
    else:
        B, m = teller.person(), dice.number(1, 10)
        winner = A.name if n > m else B.name if m > n else "nobody"
        say("Question: [A] has [n] and [B] has [m]. Who has more?", A=A, B=B, n=t.counted(n), m=NUMBERS[m])
        say("Answer: <<[winner]>>.", winner=winner)
