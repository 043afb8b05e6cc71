"""Stories of persons and animals: what they are like, where they were, what they gave."""
# in templates and code: A, B, C, X, Y persons   t thing   p place   a animal   n, m counts   x adjective

from .telling import UNEVEN, Teller
from .words import (
    ANIMALS,
    FOODS,
    FOUND_AT,
    IN_PAIRS,
    LISTS,
    NUMBERS,
    PLACES,
    PORTABLE,
    RELATIVES,
    THINGS,
    TRAITS,
    WEATHERS,
    Person,
    with_article,
)


def pet(teller: Teller) -> None:
    """An animal with its sound, its food and its bed."""
    say, dice, A = teller.say, teller.dice, teller.person()
    a = dice.pick(ANIMALS, UNEVEN)
    name, x = dice.pick(LISTS["pets"], UNEVEN), dice.pick(a.adjectives)
    teller.introduce(A, teller.place())
    say("{There [A.he] met|Here [A.he] found|[A.He] had} [x] [a] {named|called} [name].", A=A, x=with_article(x), a=a, name=name)
    scene = dice.number(0, 2)
    if scene == 0:
        say("The <<[a]>> was hungry and <<[sound]>>. [A] gave it <<[food]>>.", a=a, sound=a.sound, A=A, food=a.food)
    elif scene == 1:
        why = "{missed its mother|was afraid of the dark|wanted to play}"
        say("<<[name]>> <<[sound]>> {loudly|softly|all day}, because it " + why + ".", name=name, sound=a.sound)
        say("[A] {brought|found} <<[food]>> and the <<[a]>> ate.", A=A, food=a.food, a=a)
    else:
        b = dice.pick([other for other in ANIMALS if other is not a], UNEVEN)
        say("A [b] came and <<[its]>>. The <<[x]>> <<[a]>> <<[sound]>> back.", b=b, its=b.sound, x=x, a=a, sound=a.sound)
        friends = "{[A] laughed|They became friends|The <<[b]>> ran away}."
        fed = "[A] gave <<[name]>> <<[food]>>{ and the <<[b]>> <<[other]>>|}."
        say(f"{friends} {fed}", A=A, b=b, name=name, food=a.food, other=b.food)
    if dice.flip(0.6):
        teller.talk(A, "{Sleep well|Good night|See you soon|You are my friend}, <<[name]>>!", name=name)
    say("{At night|Then} the <<[x]>> <<[a]>> {slept|lay down|rested} in its <<[bed]>>.", x=x, a=a, bed=a.bed)
    teller.end(A)


def weather(teller: Teller) -> None:
    """Who took the right thing along?"""
    say, dice, A, B = teller.say, teller.dice, teller.person(), teller.person()
    sky = dice.pick(WEATHERS)
    p, t = teller.place(), THINGS[sky.needed]
    start = "It was [sky] that {morning|day|afternoon}. [A] and [B] {wanted to go|were on the way} to the [p]."
    say(start, sky=sky.name, A=A, B=B, p=p)
    is_pair, color = t in IN_PAIRS, teller.color()
    what = f"a pair of {color} <<{t.plural}>>" if is_pair else f"{with_article(color)} <<{t.singular}>>"
    takers: list[Person] = []
    for X in (A, B):
        if not dice.flip(0.5):
            say("[X] {left everything at home|took nothing|did not care}.", X=X)
            continue
        say("[X] {took|had|brought} " + (f"{'some' if is_pair else 'one'} too." if takers else f"{what}."), X=X)
        takers.append(X)
    if dice.flip(0.5):
        teller.talk(A if dice.flip(0.5) else B, "{Let us go|Come on|What a day|I like this}!")
    for X in (A, B):
        say("[X] <<[fate]>>.", X=X, fate=sky.with_it if X in takers else sky.without)
    if len(takers) == 1:
        X, Y = (A, B) if A in takers else (B, A)
        lent = "<<[at]>>, <<[X]>> lent the {[c] |}<<[t]>> to <<[Y]>>."
        say(lent, at=p.at, X=X, Y=Y, c=color, t=t.plural if is_pair else t)
    teller.end(A, is_happy=A in takers)


def purse(teller: Teller) -> None:
    """A character trait decides what happens."""
    say, dice, A = teller.say, teller.dice, teller.person()
    trait = dice.pick(TRAITS)
    say("[A] was [trait] [A.kid].", A=A, trait=with_article(trait.name))
    teller.go(A, teller.place(), "{One day|On Sunday|Last week} [A.he]")
    if dice.flip(0.5):
        teller.passing_animal()
    n = NUMBERS[dice.number(2, 20)]
    say("There [A.he] found a {small|new|big|worn} [c] purse with [n] coins.", A=A, c=teller.color(), n=n)
    if dice.flip(0.5):
        teller.talk(A, "{Oh|Look|Wow|My goodness}, <<[n]>> coins!", n=n)
    say("Because [A.he] was <<[trait]>>, [A.he] <<[deed]>>.", A=A, trait=trait.name, deed=trait.deed)
    if dice.flip(0.7):
        say("{The lesson|What we learn}: <<[lesson]>>.", lesson=trait.lesson)
    teller.end(A, is_happy=trait.name not in ("greedy", "lazy", "vain", "shy"))


def week(teller: Teller) -> None:
    """Days, places and things, and questions about some of them."""
    say, dice, A = teller.say, teller.dice, teller.person()
    first, places = dice.number(0, 6), dice.sample(PLACES.values(), dice.number(2, 4), UNEVEN)
    days = [LISTS["days"][(first + later) % 7] for later in range(len(places))]
    say("[A] {had a busy week|liked to be outside|was never at home}.", A=A)
    things = []
    for number, (day, p) in enumerate(zip(days, places)):
        things.append(dice.pick(FOUND_AT[p]))
        shown_day = f"<<{day}>>" if number else day  # the first day is free, the others follow
        visit = "On [day] [A.he] {went to|visited|came to} the [p] and {saw|found|got|bought} [t]."
        say(visit, A=A, day=shown_day, p=p, t=with_article(things[-1]))
    for asked in dice.sample(range(len(places)), dice.number(1, 2)):
        if dice.flip(0.5):
            say("Where was [A] on [day]? <<[at]>>.", A=A, day=days[asked], at=places[asked].at.capitalize())
        else:
            say("What was there on [day]? <<[t]>>.", day=days[asked], t=with_article(things[asked]).capitalize())
    teller.end(A)


def letter(teller: Teller) -> None:
    """Someone writes to somebody about somebody."""
    say, dice = teller.say, teller.dice
    A, B, C, p = teller.person(), teller.person(), teller.person(), teller.place()
    t = dice.pick(FOUND_AT[p])
    x = teller.adjective(t)
    say("Dear [B], {how are you?|I hope you are well.|thank you for your letter.|I miss you.}", B=B)
    say("I am [at] with my [relative] [C].", at=p.at, relative=dice.pick([hers if C.is_girl else his for hers, his in RELATIVES]), C=C)
    if dice.flip(0.5):
        say("{Yesterday|Today|This morning} we [activity].", activity=dice.pick(p.activities))
    say("{Then|Later} we {found|saw|bought} [x] [t].", x=with_article(x), t=t)
    middle = dice.number(0, 2)
    if middle == 0:
        say("<<[C]>> {liked it|laughed|wanted to keep it}, but <<[C.he]>> {was tired|had to go|lost it}.", C=C)
    elif middle == 1:
        a = dice.pick(ANIMALS, UNEVEN)
        came = "A [y] [a] came and <<[sound]>>, so <<[C]>> gave it <<[food]>>."
        say(came, y=dice.pick(a.adjectives), a=a, sound=a.sound, C=C, food=a.food)
    else:
        sky = dice.pick(WEATHERS)
        needed = THINGS[sky.needed]
        say(
            "The weather is [sky], so I always take my <<[t]>>.",
            sky=sky.name,
            t=needed.plural if needed in IN_PAIRS else needed,
        )
    say("{I will bring you the <<[x]>> <<[t]>>|The <<[x]>> <<[t]>> is for you}, <<[B]>>.", x=x, t=t, B=B)
    say("{Love|See you soon|Your friend}, [A].", A=A)


def compare(teller: Teller) -> None:
    """Two comparisons, one conclusion."""
    say, dice = teller.say, teller.dice
    persons = [teller.person() for _ in range(3)]
    x = dice.pick(LISTS["comparable"])
    comparative = "braver" if x == "brave" else f"{x}er"
    p = teller.place()
    say("[A], [B] and [C] met [at].", A=persons[0], B=persons[1], C=persons[2], at=p.at)
    if dice.flip(0.5):
        teller.scene(p)
    most, middle, least = dice.sample(persons, 3)
    pairs = [(most, middle), (middle, least)]
    for X, Y in reversed(pairs) if dice.flip(0.5) else pairs:
        say("[X] was [comparative] than [Y].", X=X, Y=Y, comparative=comparative)
    if dice.flip(0.3):
        teller.passing_animal()
    if dice.flip(0.5):
        say("Who was the [superlative]? <<[X]>>.", superlative=f"{comparative[:-1]}st", X=most)
    else:
        say("Who was the least [x]? <<[X]>>.", x=x, X=least)
    teller.end(most)


def party(teller: Teller) -> None:
    """Guests and gifts: who brought what?"""
    say, dice, A = teller.say, teller.dice, teller.person()
    n = dice.number(4, 11)
    say("It was [A]'s birthday. [A.He] was now [n] years old.", A=A, n=NUMBERS[n])
    guests = [teller.person() for _ in range(dice.number(2, 3))]
    gifts, adjectives = dice.sample(PORTABLE, len(guests), UNEVEN), []
    for B, t in zip(guests, gifts):
        adjectives.append(teller.adjective(t))
        say("[B] {brought|gave [A.him]|came with} [x] [t].", A=A, B=B, x=with_article(adjectives[-1]), t=t)
    food = dice.pick(FOODS, UNEVEN)
    say("They ate [x] [food] and {sang|danced|played games|told jokes}.", x=dice.pick(food.adjectives), food=food.plural)
    for asked in dice.sample(range(len(guests)), dice.number(1, 2)):
        gift = {"t": gifts[asked], "x": adjectives[asked], "B": guests[asked]}
        if dice.flip(0.5):
            say("The [t] was <<[x]>>. It was from <<[B]>>.", **gift)
        else:
            teller.talk(A, "[B], thank you for the <<[x]>> <<[t]>>!", **gift)
    say("Next year [A] will be <<[n]>>.", A=A, n=NUMBERS[n + 1])
